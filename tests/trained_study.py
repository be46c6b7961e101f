"""A study of models that `transformers` has too, of parts of a user's own and of a whole model."""

from __future__ import annotations

from pathlib import Path

from in_process import InProcessExecutor
from rich.console import Console

from ablate import store
from ablate.launch import devices
from ablate.launch.trainer import TorchTrainer
from ablate.plan import plan
from ablate.study import load
from ablate.study_run import run_study

PARTS = '''
import torch
from torch import nn
from ablate import level
from ablate.components.attention import Causal

@level("attention", "own-causal", meaning="itself and what stands before it")
class OwnCausal(Causal):
    """Asked for in every forward pass."""

@level("activation", "squared-relu", meaning="relu(x)²", source="So et al. 2021")
def squared_relu(x):
    return torch.relu(x) ** 2

@level("tokenizer", "backwards", meaning="bytes, counted from the end")
class Backwards:
    n_vocab = 256
    def encode(self, text):
        return [255 - byte for byte in text.encode()]
    def decode(self, tokens):
        return bytes(255 - token for token in tokens)

class Bigram(nn.Module):
    """Logits of the next token by the last one alone."""

    def __init__(self, n_vocab: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_vocab, n_vocab)
        self.register_buffer("shift", torch.full((n_vocab,), 0.5))

    def forward(self, tokens):
        return self.table(tokens) + self.shift
'''
SIZES = """
n_layer = 2
d_model = 16
n_head = 2
n_ctx = 16
batch_tokens = 128
lr = 1e-2
tokens = {tokens}
"""
STUDY = f"""
name = "kept"
question = "Do weights leave?"
metric = "bits_per_byte"
use = ["parts.py"]
seeds = 1
[base]
{SIZES.format(tokens=128 * 12)}
[run]
keep = "final"
[eval]
tokens = 512
final_tokens = 512
points = 3
[factors.model]
gpt2 = {{ position = "learned", activation = "gelu-tanh", tie_embeddings = "tied" }}
neox = {{ topology = "parallel", precision = "float32" }}
llama = {{ norm_kind = "rmsnorm", activation = "swiglu", n_kv_head = 1, bias = "none" }}
own = {{ activation = "squared-relu", attention = "own-causal" }}
backwards = {{ tokenizer = "backwards" }}
whole = {{ architecture = "parts.py:Bigram" }}
pieces = {{ tokenizer = "bpe:300", document_mask = "attention" }}
"""
MASKED = f"""
name = "masked"
question = "Do masks leave?"
metric = "era_accuracy"
seeds = 1
[base]
{SIZES.format(tokens=128 * 12)}
objective = "masked"
position = "learned"
[run]
keep = "best"
[eval]
tokens = 512
final_tokens = 512
points = 3
[factors.model]
bert = {{ norm = "post", embed_norm = "layernorm", mlm_head_transform = "dense" }}
pieces = {{ tokenizer = "bpe:300" }}
"""


def trained(folder: Path, *texts: str) -> str:
    """Train studies in this process; return the path of their database."""
    (folder / "parts.py").write_text(PARTS)
    path = str(folder / "ablate.db")
    for number, text in enumerate(texts):
        file = folder / f"study{number}.toml"
        file.write_text(text)
        train(file, path)
    return path


def train(file: Path, path: str) -> str:
    """Train a study in this process; return what it prints."""
    out = (file.parent / "out.txt").open("w+")
    with store.open(path, create=True) as db:
        executor = InProcessExecutor(devices.find("cpu")[:1], TorchTrainer)
        outcome = run_study(plan(load(str(file))), db, executor, console=Console(file=out))
    out.seek(0)
    text = out.read()
    assert outcome.exit_code == 0, text
    return text
