BEGIN TRANSACTION;
CREATE TABLE ablate_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT ablate_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "ablate_version" VALUES('0002');
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
	error TEXT, 
	CONSTRAINT pk_attempt PRIMARY KEY (id), 
	CONSTRAINT fk_attempt_run_id FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT uq_attempt_journal UNIQUE (journal), 
	CONSTRAINT uq_attempt_run_id UNIQUE (run_id, n)
);
INSERT INTO "attempt" VALUES(1,1,1,'complete','vm:20669:5533f2b1',0,NULL,'cpu',NULL,1,NULL,NULL,'{"torch": "2.13"}',NULL,0,'2023-11-14T22:13:20.000Z','2023-11-14T22:13:21.000Z',1.5,1048576,0,'5196bc969278-1-63ece441.jsonl',419,'{"points":5,"tokens":65536,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"downstream":[]}',NULL);
INSERT INTO "attempt" VALUES(2,2,1,'complete','vm:20669:5533f2b1',0,NULL,'cpu',NULL,1,NULL,NULL,'{"torch": "2.13"}',NULL,0,'2023-11-14T22:13:20.000Z','2023-11-14T22:13:21.000Z',1.5,1048576,0,'8291e12f875d-1-153e9bce.jsonl',419,'{"points":5,"tokens":65536,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"downstream":[]}',NULL);
INSERT INTO "attempt" VALUES(3,3,1,'complete','vm:20669:5533f2b1',0,NULL,'cpu',NULL,1,NULL,NULL,'{"torch": "2.13"}',NULL,0,'2023-11-14T22:13:20.000Z','2023-11-14T22:13:21.000Z',1.5,1048576,0,'b35d19d8c1d6-1-d70f778a.jsonl',419,'{"points":5,"tokens":65536,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"downstream":[]}',NULL);
INSERT INTO "attempt" VALUES(4,4,1,'complete','vm:20669:5533f2b1',0,NULL,'cpu',NULL,1,NULL,NULL,'{"torch": "2.13"}',NULL,0,'2023-11-14T22:13:20.000Z','2023-11-14T22:13:21.000Z',1.5,1048576,0,'28e3eec90225-1-55095da1.jsonl',419,'{"points":5,"tokens":65536,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"downstream":[]}',NULL);
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
INSERT INTO "run" VALUES(1,'transformer','5196bc9692786f46aaa2b6ef19f40a76a615852bd087a49def6ab6c466ba5d25','{"topology": "serial", "norm": "pre", "norm_kind": "layernorm", "n_layer": 1, "d_model": 16, "d_mlp": 64, "activation": "gelu", "outer_activation": "none", "bias": "all", "init": "fan-in", "dropout": 0.0, "attention": "causal", "n_head": 2, "n_kv_head": 2, "d_head": 8, "head_combine": "concat", "qkv": "linear", "qk_norm": "none", "attention_scale": "sqrt", "score": "dot", "position": "rotary", "n_ctx": 16, "tie_embeddings": "untied", "embed_norm": "none", "mlm_head_transform": "none", "n_vocab": 256, "objective": "causal", "mask_ratio": 0.15, "mask_mix": [0.8, 0.1, 0.1], "mask_kind": "token", "z_loss": 0.0, "corpus": "austen", "tokenizer": "byte", "corpus_hash": "", "tokenizer_hash": "", "steps": 1000, "batch_tokens": 64, "lr": 0.001, "weight_decay": 0.1, "grad_clip": 1.0, "warmup": 0.05, "schedule": "cosine", "precision": "float32"}',0,NULL,'complete',NULL,1000,64000,11504,3312,2949120000.0);
INSERT INTO "run" VALUES(2,'transformer','8291e12f875d20799f3371aa4cbb14bd77a49546bae556b040f232f1333d836b','{"topology": "parallel", "norm": "pre", "norm_kind": "layernorm", "n_layer": 1, "d_model": 16, "d_mlp": 64, "activation": "gelu", "outer_activation": "none", "bias": "all", "init": "fan-in", "dropout": 0.0, "attention": "causal", "n_head": 2, "n_kv_head": 2, "d_head": 8, "head_combine": "concat", "qkv": "linear", "qk_norm": "none", "attention_scale": "sqrt", "score": "dot", "position": "rotary", "n_ctx": 16, "tie_embeddings": "untied", "embed_norm": "none", "mlm_head_transform": "none", "n_vocab": 256, "objective": "causal", "mask_ratio": 0.15, "mask_mix": [0.8, 0.1, 0.1], "mask_kind": "token", "z_loss": 0.0, "corpus": "austen", "tokenizer": "byte", "corpus_hash": "", "tokenizer_hash": "", "steps": 1000, "batch_tokens": 64, "lr": 0.001, "weight_decay": 0.1, "grad_clip": 1.0, "warmup": 0.05, "schedule": "cosine", "precision": "float32"}',0,NULL,'complete',NULL,1000,64000,11504,3312,2949120000.0);
INSERT INTO "run" VALUES(3,'transformer','b35d19d8c1d6904a27818d39995b58f168f7d1c87361666cf5f1c8ad99ea371f','{"topology": "serial", "norm": "pre", "norm_kind": "layernorm", "n_layer": 1, "d_model": 16, "d_mlp": 64, "activation": "gelu", "outer_activation": "none", "bias": "all", "init": "fan-in", "dropout": 0.0, "attention": "causal", "n_head": 2, "n_kv_head": 2, "d_head": 8, "head_combine": "concat", "qkv": "linear", "qk_norm": "none", "attention_scale": "sqrt", "score": "dot", "position": "rotary", "n_ctx": 16, "tie_embeddings": "untied", "embed_norm": "none", "mlm_head_transform": "none", "n_vocab": 256, "objective": "causal", "mask_ratio": 0.15, "mask_mix": [0.8, 0.1, 0.1], "mask_kind": "token", "z_loss": 0.0, "corpus": "austen", "tokenizer": "byte", "corpus_hash": "", "tokenizer_hash": "", "steps": 1000, "batch_tokens": 64, "lr": 0.001, "weight_decay": 0.1, "grad_clip": 1.0, "warmup": 0.05, "schedule": "cosine", "precision": "float32"}',1,NULL,'complete',NULL,1000,64000,11504,3312,2949120000.0);
INSERT INTO "run" VALUES(4,'transformer','28e3eec90225d1fbd621914b66f656b03c753dbe63024ba652710171cbd25bcd','{"topology": "parallel", "norm": "pre", "norm_kind": "layernorm", "n_layer": 1, "d_model": 16, "d_mlp": 64, "activation": "gelu", "outer_activation": "none", "bias": "all", "init": "fan-in", "dropout": 0.0, "attention": "causal", "n_head": 2, "n_kv_head": 2, "d_head": 8, "head_combine": "concat", "qkv": "linear", "qk_norm": "none", "attention_scale": "sqrt", "score": "dot", "position": "rotary", "n_ctx": 16, "tie_embeddings": "untied", "embed_norm": "none", "mlm_head_transform": "none", "n_vocab": 256, "objective": "causal", "mask_ratio": 0.15, "mask_mix": [0.8, 0.1, 0.1], "mask_kind": "token", "z_loss": 0.0, "corpus": "austen", "tokenizer": "byte", "corpus_hash": "", "tokenizer_hash": "", "steps": 1000, "batch_tokens": 64, "lr": 0.001, "weight_decay": 0.1, "grad_clip": 1.0, "warmup": 0.05, "schedule": "cosine", "precision": "float32"}',1,NULL,'complete',NULL,1000,64000,11504,3312,2949120000.0);
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
','{"points":5,"tokens":65536,"lengths":[1.0],"probe":{"ratio":[0.15],"mix":[1.0,0.0,0.0],"kind":"token"},"downstream":[]}','0e15e865583716ea14cda200f8c00cf62a974b471246b205611bcb15974d7661');
CREATE UNIQUE INDEX ix_attempt_accepted ON attempt (run_id) WHERE status IN ('complete', 'diverged');
CREATE UNIQUE INDEX ix_attempt_running ON attempt (run_id) WHERE status = 'running';
CREATE INDEX ix_contrast_baseline_id ON contrast (baseline_id);
CREATE INDEX ix_contrast_cell_id ON contrast (cell_id);
CREATE INDEX ix_member_run_id ON member (run_id);
CREATE VIEW runs AS SELECT study.name AS study, cell.label AS cell, cell.stratum AS stratum, member.role AS role,
       run.id AS run, run.key AS key, run.status AS status, run.diverged_at AS diverged_at,
       run.seed AS seed,
       json_extract(run.fields, '$.topology') AS "topology",
       json_extract(run.fields, '$.norm') AS "norm",
       json_extract(run.fields, '$.norm_kind') AS "norm_kind",
       json_extract(run.fields, '$.n_layer') AS "n_layer",
       json_extract(run.fields, '$.d_model') AS "d_model",
       json_extract(run.fields, '$.d_mlp') AS "d_mlp",
       json_extract(run.fields, '$.activation') AS "activation",
       json_extract(run.fields, '$.outer_activation') AS "outer_activation",
       json_extract(run.fields, '$.bias') AS "bias",
       json_extract(run.fields, '$.init') AS "init",
       json_extract(run.fields, '$.dropout') AS "dropout",
       json_extract(run.fields, '$.attention') AS "attention",
       json_extract(run.fields, '$.n_head') AS "n_head",
       json_extract(run.fields, '$.n_kv_head') AS "n_kv_head",
       json_extract(run.fields, '$.d_head') AS "d_head",
       json_extract(run.fields, '$.head_combine') AS "head_combine",
       json_extract(run.fields, '$.qkv') AS "qkv",
       json_extract(run.fields, '$.qk_norm') AS "qk_norm",
       json_extract(run.fields, '$.attention_scale') AS "attention_scale",
       json_extract(run.fields, '$.score') AS "score",
       json_extract(run.fields, '$.position') AS "position",
       json_extract(run.fields, '$.n_ctx') AS "n_ctx",
       json_extract(run.fields, '$.tie_embeddings') AS "tie_embeddings",
       json_extract(run.fields, '$.embed_norm') AS "embed_norm",
       json_extract(run.fields, '$.mlm_head_transform') AS "mlm_head_transform",
       json_extract(run.fields, '$.n_vocab') AS "n_vocab",
       json_extract(run.fields, '$.objective') AS "objective",
       json_extract(run.fields, '$.mask_ratio') AS "mask_ratio",
       iif(instr(json_extract(run.fields, '$.mask_mix'), '"'), json_extract(run.fields, '$.mask_mix'), replace(json_extract(run.fields, '$.mask_mix'), ',', ', ')) AS "mask_mix",
       json_extract(run.fields, '$.mask_kind') AS "mask_kind",
       json_extract(run.fields, '$.z_loss') AS "z_loss",
       json_extract(run.fields, '$.corpus') AS "corpus",
       json_extract(run.fields, '$.tokenizer') AS "tokenizer",
       json_extract(run.fields, '$.corpus_hash') AS "corpus_hash",
       json_extract(run.fields, '$.tokenizer_hash') AS "tokenizer_hash",
       json_extract(run.fields, '$.steps') AS "steps",
       json_extract(run.fields, '$.batch_tokens') AS "batch_tokens",
       json_extract(run.fields, '$.lr') AS "lr",
       json_extract(run.fields, '$.weight_decay') AS "weight_decay",
       json_extract(run.fields, '$.grad_clip') AS "grad_clip",
       json_extract(run.fields, '$.warmup') AS "warmup",
       json_extract(run.fields, '$.schedule') AS "schedule",
       json_extract(run.fields, '$.precision') AS "precision",
       run.tokens AS tokens, run.n_params AS n_params,
       run.n_params_body AS n_params_body, run.flops AS flops,
       (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = CASE instr(study.metric, '@') WHEN 0 THEN study.metric ELSE substr(study.metric, 1, instr(study.metric, '@') - 1) END AND f.at = CASE instr(study.metric, '@') WHEN 0 THEN 0.0 ELSE CAST(substr(study.metric, instr(study.metric, '@') + 1) AS REAL) END) AS metric,
       (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss' AND f.at = 0) AS loss, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'bits_per_byte' AND f.at = 0) AS bits_per_byte, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'accuracy' AND f.at = 0) AS accuracy,
       (SELECT sum(attempt.device_seconds) FROM attempt
              WHERE attempt.run_id = run.id) AS device_seconds,
       (SELECT count(*) FROM attempt WHERE attempt.run_id = run.id) AS attempts
FROM study JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id
       JOIN run ON run.id = member.run_id
WHERE cell.active;
CREATE VIEW curves AS SELECT study.name AS study, cell.label AS cell, member.role AS role, run.id AS run,
       run.seed AS seed,
       series.name AS series, metric.step AS step, metric.step * (run.tokens / run.steps) AS tokens,
              metric.value AS value
FROM study JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id
       JOIN run ON run.id = member.run_id
     JOIN metric ON metric.run_id = run.id JOIN series ON series.id = metric.series_id
WHERE cell.active;
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
         JOIN member AS base_member ON base_member.cell_id = base.id
                AND base_member.role = 'compare'
         JOIN run AS base_run ON base_run.id = base_member.run_id AND base_run.seed = run.seed
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
CREATE VIEW finals_wide AS SELECT run.id AS run, run.key AS key, run.status AS status, run.seed AS seed,
       (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss' AND f.at = 0) AS loss, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'bits_per_byte' AND f.at = 0) AS bits_per_byte, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'accuracy' AND f.at = 0) AS accuracy, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'train_seconds' AND f.at = 0) AS train_seconds, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'epochs' AND f.at = 0) AS epochs,
       (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss_at_length' AND f.at = 1) AS loss_at_1x, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss_at_length' AND f.at = 2) AS loss_at_2x, (SELECT f.value FROM final AS f WHERE f.run_id = run.id AND f.name = 'loss_at_length' AND f.at = 4) AS loss_at_4x
FROM run;
COMMIT;
