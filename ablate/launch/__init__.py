"""Places a study's runs on devices, follows them, and keeps what they write: the way from a plan to a database."""
