BEGIN TRANSACTION;
CREATE TABLE ablate_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT ablate_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "ablate_version" VALUES('0005');
CREATE TABLE artifact (
	run_id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	path TEXT NOT NULL, 
	CONSTRAINT pk_artifact PRIMARY KEY (run_id, kind, path), 
	CONSTRAINT fk_artifact_run_id FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "artifact" VALUES(1,'checkpoint','x.pt');
CREATE TABLE attempt (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	status TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	heartbeat INTEGER NOT NULL, 
	host TEXT, 
	device TEXT, 
	device_name TEXT, 
	threads INTEGER, 
	pack_size INTEGER, 
	compile_mode TEXT, 
	versions TEXT, 
	"commit" TEXT, 
	dirty BOOLEAN, 
	started TEXT, 
	ended TEXT, 
	device_seconds FLOAT, 
	peak_bytes INTEGER, 
	resumed_step INTEGER, 
	journal TEXT NOT NULL, 
	journal_offset INTEGER NOT NULL, 
	evaluation TEXT NOT NULL, 
	error TEXT, note TEXT, 
	CONSTRAINT pk_attempt PRIMARY KEY (id), 
	CONSTRAINT fk_attempt_run_id FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT uq_attempt_journal UNIQUE (journal), 
	CONSTRAINT uq_attempt_run_id UNIQUE (run_id, n)
);
INSERT INTO "attempt" VALUES(1,1,1,'complete','vm:7811:8ecb944a',0,NULL,'cpu',NULL,1,NULL,NULL,'{"torch": "2.13"}',NULL,0,'2023-11-14T22:13:20.000Z','2023-11-14T22:13:21.000Z',1.5,1048576,0,'5196bc969278-1-d001794b.jsonl',621,'{"points":5,"tokens":65536,"final_tokens":null,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"decoded":256,"beams":[1,4],"downstream":[],"probe_csv":null,"probe_csv_hash":null,"own":null}',NULL,NULL);
INSERT INTO "attempt" VALUES(2,2,1,'complete','vm:7811:8ecb944a',0,NULL,'cpu',NULL,1,NULL,NULL,'{"torch": "2.13"}',NULL,0,'2023-11-14T22:13:20.000Z','2023-11-14T22:13:21.000Z',1.5,1048576,0,'8291e12f875d-1-73de970b.jsonl',621,'{"points":5,"tokens":65536,"final_tokens":null,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"decoded":256,"beams":[1,4],"downstream":[],"probe_csv":null,"probe_csv_hash":null,"own":null}',NULL,NULL);
INSERT INTO "attempt" VALUES(3,3,1,'complete','vm:7811:8ecb944a',0,NULL,'cpu',NULL,1,NULL,NULL,'{"torch": "2.13"}',NULL,0,'2023-11-14T22:13:20.000Z','2023-11-14T22:13:21.000Z',1.5,1048576,0,'b35d19d8c1d6-1-9d26446b.jsonl',621,'{"points":5,"tokens":65536,"final_tokens":null,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"decoded":256,"beams":[1,4],"downstream":[],"probe_csv":null,"probe_csv_hash":null,"own":null}',NULL,NULL);
INSERT INTO "attempt" VALUES(4,4,1,'complete','vm:7811:8ecb944a',0,NULL,'cpu',NULL,1,NULL,NULL,'{"torch": "2.13"}',NULL,0,'2023-11-14T22:13:20.000Z','2023-11-14T22:13:21.000Z',1.5,1048576,0,'28e3eec90225-1-8bdbfc1b.jsonl',621,'{"points":5,"tokens":65536,"final_tokens":null,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"decoded":256,"beams":[1,4],"downstream":[],"probe_csv":null,"probe_csv_hash":null,"own":null}',NULL,NULL);
CREATE TABLE cell (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	label TEXT NOT NULL, 
	stratum TEXT NOT NULL, 
	active BOOLEAN NOT NULL, 
	CONSTRAINT pk_cell PRIMARY KEY (id), 
	CONSTRAINT fk_cell_study_id FOREIGN KEY(study_id) REFERENCES study (id) ON DELETE CASCADE, 
	CONSTRAINT uq_cell_study_id UNIQUE (study_id, label)
);
INSERT INTO "cell" VALUES(1,1,'topology=serial','',1);
INSERT INTO "cell" VALUES(2,1,'topology=parallel','',1);
CREATE TABLE cell_level (
	cell_id INTEGER NOT NULL, 
	factor TEXT NOT NULL, 
	level TEXT NOT NULL, 
	ordinal INTEGER NOT NULL, 
	CONSTRAINT pk_cell_level PRIMARY KEY (cell_id, factor), 
	CONSTRAINT fk_cell_level_cell_id FOREIGN KEY(cell_id) REFERENCES cell (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "cell_level" VALUES(1,'topology','serial',0);
INSERT INTO "cell_level" VALUES(2,'topology','parallel',1);
CREATE TABLE code (
	study_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	version TEXT NOT NULL, 
	active BOOLEAN NOT NULL, 
	text TEXT, 
	about TEXT NOT NULL, 
	CONSTRAINT pk_code PRIMARY KEY (study_id, name, version), 
	CONSTRAINT fk_code_study_id FOREIGN KEY(study_id) REFERENCES study (id) ON DELETE CASCADE
);
CREATE TABLE contrast (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	family TEXT NOT NULL, 
	stratum TEXT NOT NULL, 
	factor TEXT NOT NULL, 
	level TEXT NOT NULL, 
	cell_id INTEGER NOT NULL, 
	baseline_id INTEGER NOT NULL, 
	CONSTRAINT pk_contrast PRIMARY KEY (id), 
	CONSTRAINT fk_contrast_baseline_id FOREIGN KEY(baseline_id) REFERENCES cell (id) ON DELETE CASCADE, 
	CONSTRAINT fk_contrast_cell_id FOREIGN KEY(cell_id) REFERENCES cell (id) ON DELETE CASCADE, 
	CONSTRAINT fk_contrast_study_id FOREIGN KEY(study_id) REFERENCES study (id) ON DELETE CASCADE, 
	CONSTRAINT uq_contrast_study_id UNIQUE (study_id, family, stratum, factor, level, cell_id, baseline_id)
);
INSERT INTO "contrast" VALUES(1,1,'topology','','topology','parallel',2,1);
CREATE TABLE decision (
	study_id INTEGER NOT NULL, 
	cell_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	evidence TEXT NOT NULL, 
	CONSTRAINT pk_decision PRIMARY KEY (study_id, cell_id, name), 
	CONSTRAINT fk_decision_cell_id FOREIGN KEY(cell_id) REFERENCES cell (id) ON DELETE CASCADE, 
	CONSTRAINT fk_decision_study_id FOREIGN KEY(study_id) REFERENCES study (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE effect (
	contrast_id INTEGER NOT NULL, 
	metric TEXT NOT NULL, 
	method TEXT NOT NULL, 
	n INTEGER NOT NULL, 
	lost INTEGER NOT NULL, 
	mean FLOAT, 
	sd FLOAT, 
	lo FLOAT, 
	hi FLOAT, 
	p FLOAT, 
	p_holm FLOAT, 
	input_hash TEXT NOT NULL, 
	CONSTRAINT pk_effect PRIMARY KEY (contrast_id, metric, method), 
	CONSTRAINT fk_effect_contrast_id FOREIGN KEY(contrast_id) REFERENCES contrast (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE final (
	run_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	value FLOAT, 
	CONSTRAINT pk_final PRIMARY KEY (run_id, name, at), 
	CONSTRAINT fk_final_run_id FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "final" VALUES(1,'accuracy',0.0,0.5);
INSERT INTO "final" VALUES(1,'loss',0.0,2.0);
INSERT INTO "final" VALUES(2,'accuracy',0.0,9e999);
INSERT INTO "final" VALUES(2,'loss',0.0,2.0);
INSERT INTO "final" VALUES(3,'accuracy',0.0,0.5);
INSERT INTO "final" VALUES(3,'loss',0.0,2.0);
INSERT INTO "final" VALUES(4,'accuracy',0.0,0.5);
INSERT INTO "final" VALUES(4,'loss',0.0,2.0);
CREATE TABLE finding (
	study_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	stratum TEXT, 
	factor TEXT, 
	level TEXT, 
	cell TEXT, 
	data TEXT NOT NULL, 
	CONSTRAINT pk_finding PRIMARY KEY (study_id, ordinal), 
	CONSTRAINT fk_finding_study_id FOREIGN KEY(study_id) REFERENCES study (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "finding" VALUES(1,0,'effect','',NULL,NULL,NULL,'{"mean": 0.5}');
CREATE TABLE member (
	cell_id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	role TEXT NOT NULL, 
	ordinal INTEGER NOT NULL, 
	CONSTRAINT pk_member PRIMARY KEY (cell_id, run_id, role), 
	CONSTRAINT fk_member_cell_id FOREIGN KEY(cell_id) REFERENCES cell (id) ON DELETE CASCADE, 
	CONSTRAINT fk_member_run_id FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "member" VALUES(1,1,'compare',0);
INSERT INTO "member" VALUES(1,3,'compare',2);
INSERT INTO "member" VALUES(2,2,'compare',1);
INSERT INTO "member" VALUES(2,4,'compare',3);
CREATE TABLE metric (
	run_id INTEGER NOT NULL, 
	series_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	value FLOAT, 
	CONSTRAINT pk_metric PRIMARY KEY (run_id, series_id, step)
)
 WITHOUT ROWID

;
INSERT INTO "metric" VALUES(1,1,1,3.0);
INSERT INTO "metric" VALUES(1,1,2,NULL);
INSERT INTO "metric" VALUES(1,1,3,2.33333333333333348136e+00);
INSERT INTO "metric" VALUES(1,2,1,0.001);
INSERT INTO "metric" VALUES(1,2,2,NULL);
INSERT INTO "metric" VALUES(1,2,3,0.001);
INSERT INTO "metric" VALUES(2,1,1,3.0);
INSERT INTO "metric" VALUES(2,1,2,2.5);
INSERT INTO "metric" VALUES(2,1,3,2.33333333333333348136e+00);
INSERT INTO "metric" VALUES(2,2,1,0.001);
INSERT INTO "metric" VALUES(2,2,2,0.001);
INSERT INTO "metric" VALUES(2,2,3,0.001);
INSERT INTO "metric" VALUES(3,1,1,3.0);
INSERT INTO "metric" VALUES(3,1,2,2.5);
INSERT INTO "metric" VALUES(3,1,3,2.33333333333333348136e+00);
INSERT INTO "metric" VALUES(3,2,1,0.001);
INSERT INTO "metric" VALUES(3,2,2,0.001);
INSERT INTO "metric" VALUES(3,2,3,0.001);
INSERT INTO "metric" VALUES(4,1,1,3.0);
INSERT INTO "metric" VALUES(4,1,2,2.5);
INSERT INTO "metric" VALUES(4,1,3,2.33333333333333348136e+00);
INSERT INTO "metric" VALUES(4,2,1,0.001);
INSERT INTO "metric" VALUES(4,2,2,0.001);
INSERT INTO "metric" VALUES(4,2,3,0.001);
CREATE TABLE "run" (
	id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	fields TEXT NOT NULL, 
	seed INTEGER NOT NULL, 
	parent_run_id INTEGER, 
	status TEXT NOT NULL, 
	diverged_at INTEGER, 
	steps INTEGER, 
	tokens INTEGER, 
	n_params INTEGER, 
	n_params_body INTEGER, 
	flops FLOAT, 
	CONSTRAINT pk_run PRIMARY KEY (id), 
	CONSTRAINT fk_run_parent_run_id FOREIGN KEY(parent_run_id) REFERENCES "run" (id) ON DELETE SET NULL, 
	CONSTRAINT uq_run_key UNIQUE ("key")
);
INSERT INTO "run" VALUES(1,'transformer','5196bc9692786f46aaa2b6ef19f40a76a615852bd087a49def6ab6c466ba5d25','{"architecture": "transformer", "topology": "serial", "norm": "pre", "norm_kind": "layernorm", "norm_epsilon": 1e-05, "n_layer": 1, "n_layer_encoder": 0, "d_model": 16, "d_mlp": 64, "mlp": "dense", "activation": "gelu", "outer_activation": "none", "bias": "all", "init": "fan-in", "dropout": 0.0, "mixer": "attention", "rnn_cell": "gru", "attention": "causal", "encoder_attention": "full", "document_mask": "none", "n_head": 2, "n_kv_head": 2, "d_head": 8, "head_combine": "concat", "qkv": "linear", "qk_norm": "none", "attention_scale": "sqrt", "score": "dot", "position": "rotary", "rope_theta": 10000.0, "rope_share": 1.0, "n_ctx": 16, "embedding": "lookup", "class_token": "none", "tie_embeddings": "untied", "embed_norm": "none", "mlm_head_transform": "none", "n_vocab": 256, "objective": "causal", "mask_ratio": 0.15, "mask_mix": [0.8, 0.1, 0.1], "mask_kind": "token", "mean_span": 3.0, "corruption": "infill", "z_loss": 0.0, "corpus": "austen", "tokenizer": "byte", "corpus_hash": "", "code": [], "split": "", "tokenizer_hash": "", "start": "random", "corruption_tokens": "last", "steps": 1000, "batch_tokens": 64, "optimiser": "adamw", "lr": 0.001, "weight_decay": 0.1, "grad_clip": 1.0, "warmup": 0.05, "schedule": "cosine", "precision": "float32", "method": "none", "pooling": "mean", "text_format": "plain", "init_seed": null, "data_seed": null}',0,NULL,'complete',NULL,1000,64000,11504,3312,2949120000.0);
INSERT INTO "run" VALUES(2,'transformer','8291e12f875d20799f3371aa4cbb14bd77a49546bae556b040f232f1333d836b','{"architecture": "transformer", "topology": "parallel", "norm": "pre", "norm_kind": "layernorm", "norm_epsilon": 1e-05, "n_layer": 1, "n_layer_encoder": 0, "d_model": 16, "d_mlp": 64, "mlp": "dense", "activation": "gelu", "outer_activation": "none", "bias": "all", "init": "fan-in", "dropout": 0.0, "mixer": "attention", "rnn_cell": "gru", "attention": "causal", "encoder_attention": "full", "document_mask": "none", "n_head": 2, "n_kv_head": 2, "d_head": 8, "head_combine": "concat", "qkv": "linear", "qk_norm": "none", "attention_scale": "sqrt", "score": "dot", "position": "rotary", "rope_theta": 10000.0, "rope_share": 1.0, "n_ctx": 16, "embedding": "lookup", "class_token": "none", "tie_embeddings": "untied", "embed_norm": "none", "mlm_head_transform": "none", "n_vocab": 256, "objective": "causal", "mask_ratio": 0.15, "mask_mix": [0.8, 0.1, 0.1], "mask_kind": "token", "mean_span": 3.0, "corruption": "infill", "z_loss": 0.0, "corpus": "austen", "tokenizer": "byte", "corpus_hash": "", "code": [], "split": "", "tokenizer_hash": "", "start": "random", "corruption_tokens": "last", "steps": 1000, "batch_tokens": 64, "optimiser": "adamw", "lr": 0.001, "weight_decay": 0.1, "grad_clip": 1.0, "warmup": 0.05, "schedule": "cosine", "precision": "float32", "method": "none", "pooling": "mean", "text_format": "plain", "init_seed": null, "data_seed": null}',0,NULL,'complete',NULL,1000,64000,11504,3312,2949120000.0);
INSERT INTO "run" VALUES(3,'transformer','b35d19d8c1d6904a27818d39995b58f168f7d1c87361666cf5f1c8ad99ea371f','{"architecture": "transformer", "topology": "serial", "norm": "pre", "norm_kind": "layernorm", "norm_epsilon": 1e-05, "n_layer": 1, "n_layer_encoder": 0, "d_model": 16, "d_mlp": 64, "mlp": "dense", "activation": "gelu", "outer_activation": "none", "bias": "all", "init": "fan-in", "dropout": 0.0, "mixer": "attention", "rnn_cell": "gru", "attention": "causal", "encoder_attention": "full", "document_mask": "none", "n_head": 2, "n_kv_head": 2, "d_head": 8, "head_combine": "concat", "qkv": "linear", "qk_norm": "none", "attention_scale": "sqrt", "score": "dot", "position": "rotary", "rope_theta": 10000.0, "rope_share": 1.0, "n_ctx": 16, "embedding": "lookup", "class_token": "none", "tie_embeddings": "untied", "embed_norm": "none", "mlm_head_transform": "none", "n_vocab": 256, "objective": "causal", "mask_ratio": 0.15, "mask_mix": [0.8, 0.1, 0.1], "mask_kind": "token", "mean_span": 3.0, "corruption": "infill", "z_loss": 0.0, "corpus": "austen", "tokenizer": "byte", "corpus_hash": "", "code": [], "split": "", "tokenizer_hash": "", "start": "random", "corruption_tokens": "last", "steps": 1000, "batch_tokens": 64, "optimiser": "adamw", "lr": 0.001, "weight_decay": 0.1, "grad_clip": 1.0, "warmup": 0.05, "schedule": "cosine", "precision": "float32", "method": "none", "pooling": "mean", "text_format": "plain", "init_seed": null, "data_seed": null}',1,NULL,'complete',NULL,1000,64000,11504,3312,2949120000.0);
INSERT INTO "run" VALUES(4,'transformer','28e3eec90225d1fbd621914b66f656b03c753dbe63024ba652710171cbd25bcd','{"architecture": "transformer", "topology": "parallel", "norm": "pre", "norm_kind": "layernorm", "norm_epsilon": 1e-05, "n_layer": 1, "n_layer_encoder": 0, "d_model": 16, "d_mlp": 64, "mlp": "dense", "activation": "gelu", "outer_activation": "none", "bias": "all", "init": "fan-in", "dropout": 0.0, "mixer": "attention", "rnn_cell": "gru", "attention": "causal", "encoder_attention": "full", "document_mask": "none", "n_head": 2, "n_kv_head": 2, "d_head": 8, "head_combine": "concat", "qkv": "linear", "qk_norm": "none", "attention_scale": "sqrt", "score": "dot", "position": "rotary", "rope_theta": 10000.0, "rope_share": 1.0, "n_ctx": 16, "embedding": "lookup", "class_token": "none", "tie_embeddings": "untied", "embed_norm": "none", "mlm_head_transform": "none", "n_vocab": 256, "objective": "causal", "mask_ratio": 0.15, "mask_mix": [0.8, 0.1, 0.1], "mask_kind": "token", "mean_span": 3.0, "corruption": "infill", "z_loss": 0.0, "corpus": "austen", "tokenizer": "byte", "corpus_hash": "", "code": [], "split": "", "tokenizer_hash": "", "start": "random", "corruption_tokens": "last", "steps": 1000, "batch_tokens": 64, "optimiser": "adamw", "lr": 0.001, "weight_decay": 0.1, "grad_clip": 1.0, "warmup": 0.05, "schedule": "cosine", "precision": "float32", "method": "none", "pooling": "mean", "text_format": "plain", "init_seed": null, "data_seed": null}',1,NULL,'complete',NULL,1000,64000,11504,3312,2949120000.0);
CREATE TABLE run_field (
	run_id INTEGER NOT NULL, "architecture", "topology", "norm", "norm_kind", "norm_epsilon", "mlp", "n_layer", "n_layer_encoder", "d_model", "d_mlp", "activation", "outer_activation", "bias", "init", "dropout", "mixer", "rnn_cell", "attention", "encoder_attention", "document_mask", "n_head", "n_kv_head", "d_head", "head_combine", "qkv", "qk_norm", "attention_scale", "score", "position", "rope_theta", "rope_share", "n_ctx", "embedding", "class_token", "tie_embeddings", "embed_norm", "mlm_head_transform", "n_vocab", "objective", "mask_ratio", "mask_mix", "mask_kind", "mean_span", "corruption", "z_loss", "corpus", "tokenizer", "corpus_hash", "split", "tokenizer_hash", "start", "corruption_tokens", "steps", "batch_tokens", "optimiser", "lr", "weight_decay", "grad_clip", "warmup", "schedule", "precision", "method", "pooling", "text_format", "code", "init_seed", "data_seed", "patch", "image_height", "image_width", "image_channels", "n_layer_decoder", "d_decoder", "source_token", "target_token", "end_token", "hidden_tokens", "task", "task_hash", "n_class", "n_validation", "n_texts", "n_fitted", "n_tested", "unit", "labels", "finetune_steps", "finetune_lr", "finetune_batch", "adapter_size", "lora_rank", "learner_c", "n_trees", "start_from", "start_hash", "drop_blocks", "swap_blocks", "prune_heads", "prune_share", "shuffle_heads", "special_ids", 
	CONSTRAINT pk_run_field PRIMARY KEY (run_id), 
	CONSTRAINT fk_run_field_run_id FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
);
INSERT INTO "run_field" VALUES(1,'transformer','serial','pre','layernorm',1.0e-05,'dense',1,0,16,64,'gelu','none','all','fan-in',0.0,'attention','gru','causal','full','none',2,2,8,'concat','linear','none','sqrt','dot','rotary',10000.0,1.0,16,'lookup','none','untied','none','none',256,'causal',0.15,'[0.8, 0.1, 0.1]','token',3.0,'infill',0.0,'austen','byte','','','','random','last',1000,64,'adamw',0.001,0.1,1.0,0.05,'cosine','float32','none','mean','plain','[]',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run_field" VALUES(2,'transformer','parallel','pre','layernorm',1.0e-05,'dense',1,0,16,64,'gelu','none','all','fan-in',0.0,'attention','gru','causal','full','none',2,2,8,'concat','linear','none','sqrt','dot','rotary',10000.0,1.0,16,'lookup','none','untied','none','none',256,'causal',0.15,'[0.8, 0.1, 0.1]','token',3.0,'infill',0.0,'austen','byte','','','','random','last',1000,64,'adamw',0.001,0.1,1.0,0.05,'cosine','float32','none','mean','plain','[]',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run_field" VALUES(3,'transformer','serial','pre','layernorm',1.0e-05,'dense',1,0,16,64,'gelu','none','all','fan-in',0.0,'attention','gru','causal','full','none',2,2,8,'concat','linear','none','sqrt','dot','rotary',10000.0,1.0,16,'lookup','none','untied','none','none',256,'causal',0.15,'[0.8, 0.1, 0.1]','token',3.0,'infill',0.0,'austen','byte','','','','random','last',1000,64,'adamw',0.001,0.1,1.0,0.05,'cosine','float32','none','mean','plain','[]',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "run_field" VALUES(4,'transformer','parallel','pre','layernorm',1.0e-05,'dense',1,0,16,64,'gelu','none','all','fan-in',0.0,'attention','gru','causal','full','none',2,2,8,'concat','linear','none','sqrt','dot','rotary',10000.0,1.0,16,'lookup','none','untied','none','none',256,'causal',0.15,'[0.8, 0.1, 0.1]','token',3.0,'infill',0.0,'austen','byte','','','','random','last',1000,64,'adamw',0.001,0.1,1.0,0.05,'cosine','float32','none','mean','plain','[]',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE series (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	unit TEXT NOT NULL, 
	goal TEXT NOT NULL, 
	CONSTRAINT pk_series PRIMARY KEY (id), 
	CONSTRAINT uq_series_name UNIQUE (name)
);
INSERT INTO "series" VALUES(1,'loss','nats','min');
INSERT INTO "series" VALUES(2,'lr','','');
CREATE TABLE study (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	question TEXT NOT NULL, 
	metric TEXT NOT NULL, 
	goal TEXT NOT NULL, 
	revision INTEGER NOT NULL, 
	toml TEXT NOT NULL, 
	evaluation TEXT NOT NULL, 
	plan_hash TEXT NOT NULL, 
	CONSTRAINT pk_study PRIMARY KEY (id), 
	CONSTRAINT uq_study_name UNIQUE (name)
);
INSERT INTO "study" VALUES(1,'wiring','Which wiring?','loss','min',1,'name = "wiring"
','{"points":5,"tokens":65536,"final_tokens":null,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"decoded":256,"beams":[1,4],"downstream":[],"probe_csv":null,"probe_csv_hash":null,"own":null}','adef1a971af5ea9a74473d84be981cb1a50c839002bfac5b6fb94db41be1a039');
CREATE TABLE window_loss (
	run_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	tokens INTEGER NOT NULL, 
	layout BLOB NOT NULL, 
	losses BLOB NOT NULL, 
	CONSTRAINT pk_window_loss PRIMARY KEY (run_id, name, at), 
	CONSTRAINT fk_window_loss_run_id FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
);
INSERT INTO "window_loss" VALUES(1,'loss',0.0,1024,X'78DA636080020E28CD824A030001300011',X'0000C03F00002040');
INSERT INTO "window_loss" VALUES(2,'loss',0.0,1024,X'78DA636080020E28CD824A030001300011',X'0000C03F00002040');
INSERT INTO "window_loss" VALUES(3,'loss',0.0,1024,X'78DA636080020E28CD824A030001300011',X'0000C03F00002040');
INSERT INTO "window_loss" VALUES(4,'loss',0.0,1024,X'78DA636080020E28CD824A030001300011',X'0000C03F00002040');
CREATE UNIQUE INDEX ix_attempt_accepted ON attempt (run_id) WHERE status IN ('complete', 'diverged');
CREATE UNIQUE INDEX ix_attempt_running ON attempt (run_id) WHERE status = 'running';
CREATE INDEX ix_contrast_baseline_id ON contrast (baseline_id);
CREATE INDEX ix_contrast_cell_id ON contrast (cell_id);
CREATE INDEX ix_member_run_id ON member (run_id);
CREATE VIEW all_runs AS SELECT study.name AS study, cell.label AS cell, cell.stratum AS stratum, member.role AS role,
       run.id AS run, run.key AS key, run.status AS status, run.diverged_at AS diverged_at,
       run.seed AS seed,
       run_field."architecture" AS "architecture",
       run_field."topology" AS "topology",
       run_field."norm" AS "norm",
       run_field."norm_kind" AS "norm_kind",
       run_field."norm_epsilon" AS "norm_epsilon",
       run_field."mlp" AS "mlp",
       run_field."n_layer" AS "n_layer",
       run_field."n_layer_encoder" AS "n_layer_encoder",
       run_field."d_model" AS "d_model",
       run_field."d_mlp" AS "d_mlp",
       run_field."activation" AS "activation",
       run_field."outer_activation" AS "outer_activation",
       run_field."bias" AS "bias",
       run_field."init" AS "init",
       run_field."dropout" AS "dropout",
       run_field."mixer" AS "mixer",
       run_field."rnn_cell" AS "rnn_cell",
       run_field."attention" AS "attention",
       run_field."encoder_attention" AS "encoder_attention",
       run_field."document_mask" AS "document_mask",
       run_field."n_head" AS "n_head",
       run_field."n_kv_head" AS "n_kv_head",
       run_field."d_head" AS "d_head",
       run_field."head_combine" AS "head_combine",
       run_field."qkv" AS "qkv",
       run_field."qk_norm" AS "qk_norm",
       run_field."attention_scale" AS "attention_scale",
       run_field."score" AS "score",
       run_field."position" AS "position",
       run_field."rope_theta" AS "rope_theta",
       run_field."rope_share" AS "rope_share",
       run_field."n_ctx" AS "n_ctx",
       run_field."embedding" AS "embedding",
       run_field."class_token" AS "class_token",
       run_field."tie_embeddings" AS "tie_embeddings",
       run_field."embed_norm" AS "embed_norm",
       run_field."mlm_head_transform" AS "mlm_head_transform",
       run_field."n_vocab" AS "n_vocab",
       run_field."objective" AS "objective",
       run_field."mask_ratio" AS "mask_ratio",
       run_field."mask_mix" AS "mask_mix",
       run_field."mask_kind" AS "mask_kind",
       run_field."mean_span" AS "mean_span",
       run_field."corruption" AS "corruption",
       run_field."z_loss" AS "z_loss",
       run_field."corpus" AS "corpus",
       run_field."tokenizer" AS "tokenizer",
       run_field."corpus_hash" AS "corpus_hash",
       run_field."split" AS "split",
       run_field."tokenizer_hash" AS "tokenizer_hash",
       run_field."start" AS "start",
       run_field."corruption_tokens" AS "corruption_tokens",
       run_field."steps" AS "steps",
       run_field."batch_tokens" AS "batch_tokens",
       run_field."optimiser" AS "optimiser",
       run_field."lr" AS "lr",
       run_field."weight_decay" AS "weight_decay",
       run_field."grad_clip" AS "grad_clip",
       run_field."warmup" AS "warmup",
       run_field."schedule" AS "schedule",
       run_field."precision" AS "precision",
       run_field."method" AS "method",
       run_field."pooling" AS "pooling",
       run_field."text_format" AS "text_format",
       run_field."code" AS "code",
       run_field."init_seed" AS "init_seed",
       run_field."data_seed" AS "data_seed",
       run_field."patch" AS "patch",
       run_field."image_height" AS "image_height",
       run_field."image_width" AS "image_width",
       run_field."image_channels" AS "image_channels",
       run_field."n_layer_decoder" AS "n_layer_decoder",
       run_field."d_decoder" AS "d_decoder",
       run_field."source_token" AS "source_token",
       run_field."target_token" AS "target_token",
       run_field."end_token" AS "end_token",
       run_field."hidden_tokens" AS "hidden_tokens",
       run_field."task" AS "task",
       run_field."task_hash" AS "task_hash",
       run_field."n_class" AS "n_class",
       run_field."n_validation" AS "n_validation",
       run_field."n_texts" AS "n_texts",
       run_field."n_fitted" AS "n_fitted",
       run_field."n_tested" AS "n_tested",
       run_field."unit" AS "unit",
       run_field."labels" AS "labels",
       run_field."finetune_steps" AS "finetune_steps",
       run_field."finetune_lr" AS "finetune_lr",
       run_field."finetune_batch" AS "finetune_batch",
       run_field."adapter_size" AS "adapter_size",
       run_field."lora_rank" AS "lora_rank",
       run_field."learner_c" AS "learner_c",
       run_field."n_trees" AS "n_trees",
       run_field."start_from" AS "start_from",
       run_field."start_hash" AS "start_hash",
       run_field."drop_blocks" AS "drop_blocks",
       run_field."swap_blocks" AS "swap_blocks",
       run_field."prune_heads" AS "prune_heads",
       run_field."prune_share" AS "prune_share",
       run_field."shuffle_heads" AS "shuffle_heads",
       run_field."special_ids" AS "special_ids",
       run.tokens AS tokens, run.n_params AS n_params,
       run.n_params_body AS n_params_body, run.flops AS flops,
       (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = CASE instr(study.metric, '@') WHEN 0 THEN study.metric ELSE substr(study.metric, 1, instr(study.metric, '@') - 1) END AND f.at = CASE instr(study.metric, '@') WHEN 0 THEN 0.0 ELSE CAST(substr(study.metric, instr(study.metric, '@') + 1) AS REAL) END) AS metric,
       (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss' AND f.at = 0) AS loss, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'bits_per_byte' AND f.at = 0) AS bits_per_byte, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'accuracy' AND f.at = 0) AS accuracy,
       (SELECT sum(attempt.device_seconds) FROM attempt
              WHERE attempt.run_id = run.id) AS device_seconds,
       (SELECT count(*) FROM attempt WHERE attempt.run_id = run.id) AS attempts
FROM study JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id
       JOIN run ON run.id = member.run_id LEFT JOIN run_field ON run_field.run_id = run.id
WHERE cell.active;
CREATE VIEW runs AS SELECT * FROM all_runs WHERE role = 'compare';
CREATE VIEW all_curves AS SELECT study.name AS study, cell.label AS cell, member.role AS role, run.id AS run,
       run.seed AS seed,
       series.name AS series, metric.step AS step, metric.step * (run.tokens / run.steps) AS tokens,
              metric.value AS value
FROM study JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id
       JOIN run ON run.id = member.run_id
     JOIN metric ON metric.run_id = run.id JOIN series ON series.id = metric.series_id
WHERE cell.active;
CREATE VIEW curves AS SELECT * FROM all_curves WHERE role = 'compare';
CREATE VIEW pairs AS SELECT study, family, stratum, factor, level, cell, baseline, seed, metric, value, baseline_value,
       value - baseline_value AS difference, status, baseline_status, contrast
FROM (
    SELECT study.name AS study, contrast.family AS family, contrast.stratum AS stratum,
           contrast.factor AS factor,
           contrast.level AS level, cell.label AS cell, base.label AS baseline, run.seed AS seed,
                  study.metric AS metric,
           (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = CASE instr(study.metric, '@') WHEN 0 THEN study.metric ELSE substr(study.metric, 1, instr(study.metric, '@') - 1) END AND f.at = CASE instr(study.metric, '@') WHEN 0 THEN 0.0 ELSE CAST(substr(study.metric, instr(study.metric, '@') + 1) AS REAL) END) AS value, (SELECT f.value FROM final AS f WHERE f.run_id = base_run.id AND f.name = CASE instr(study.metric, '@') WHEN 0 THEN study.metric ELSE substr(study.metric, 1, instr(study.metric, '@') - 1) END AND f.at = CASE instr(study.metric, '@') WHEN 0 THEN 0.0 ELSE CAST(substr(study.metric, instr(study.metric, '@') + 1) AS REAL) END) AS baseline_value,
           run.status AS status, base_run.status AS baseline_status, contrast.id AS contrast
    FROM study JOIN contrast ON contrast.study_id = study.id
         JOIN cell ON cell.id = contrast.cell_id JOIN cell AS base ON base.id = contrast.baseline_id
         JOIN member ON member.cell_id = cell.id AND member.role = 'compare'
                JOIN run ON run.id = member.run_id
         CROSS JOIN (
             SELECT DISTINCT study.name AS study, cell.id AS cell_id, run.id AS id,
                    run.seed AS seed, run.status AS status
             FROM study JOIN cell ON cell.study_id = study.id
                  JOIN member ON member.cell_id = cell.id AND member.role = 'compare'
                  JOIN run ON run.id = member.run_id
             WHERE cell.id IN (SELECT baseline_id FROM contrast)
         ) AS base_run ON base_run.study = study.name AND base_run.cell_id = base.id
                AND base_run.seed = run.seed
);
CREATE VIEW effects AS SELECT study.name AS study, contrast.family AS family, contrast.stratum AS stratum,
       contrast.factor AS factor,
       contrast.level AS level, cell.label AS cell, base.label AS baseline,
              effect.metric AS metric, effect.n AS n,
       effect.lost AS lost, effect.mean AS mean, effect.sd AS sd, effect.lo AS lo, effect.hi AS hi,
              effect.p AS p,
       effect.p_holm AS p_holm, effect.method AS method
FROM study JOIN contrast ON contrast.study_id = study.id
       JOIN effect ON effect.contrast_id = contrast.id
     JOIN cell ON cell.id = contrast.cell_id JOIN cell AS base ON base.id = contrast.baseline_id;
CREATE VIEW findings AS SELECT study.name AS study, finding.ordinal AS ordinal, finding.kind AS kind,
       finding.stratum AS stratum, finding.factor AS factor, finding.level AS level,
       finding.cell AS cell, finding.data AS data
FROM study JOIN finding ON finding.study_id = study.id;
CREATE VIEW finals_wide AS SELECT run.id AS run, run.key AS key, run.status AS status, run.seed AS seed,
       (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss' AND f.at = 0) AS loss, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'bits_per_byte' AND f.at = 0) AS bits_per_byte, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'accuracy' AND f.at = 0) AS accuracy, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'unigram_loss' AND f.at = 0) AS unigram_loss, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'copy_loss' AND f.at = 0) AS copy_loss, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'copy_loss_first' AND f.at = 0) AS copy_loss_first, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'train_seconds' AND f.at = 0) AS train_seconds, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'epochs' AND f.at = 0) AS epochs,
       (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss_at_length' AND f.at = 1) AS loss_at_1x, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss_at_length' AND f.at = 2) AS loss_at_2x, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss_at_length' AND f.at = 4) AS loss_at_4x
FROM run;
COMMIT;
