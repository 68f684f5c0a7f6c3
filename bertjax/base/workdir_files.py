"""The names of the files and folders in the workdir of a run.

| name | content |
|---|---|
| `run.json`, `.run.json` | the config of the run and a hash of its data, and a spare copy |
| `run.lock` | the lock file, which names the process that writes to the workdir (`base.lock`) |
| `tokenizer/` | the tokenizer of the model and of its training data |
| `checkpoints/`, `checkpoints/deleted/` | the Orbax checkpoints of the run, and those to delete |
| `damaged/`, `rolled_back/` | damaged checkpoints; checkpoints that a rollback has moved away |
| `replaced/` | a checkpoint while a new one of the same step is written |
| `metrics.jsonl`, `events.out.tfevents.*` | the metrics as JSON lines and as TensorBoard events |
| `goodput.jsonl`, `.goodput.json` | where the time of ended processes, and of this one, went |
| `processes.jsonl` | the commands, hardware and versions of the run's processes |
| `rollbacks.json` | the rollbacks of the run, if there were any |
| `model/`, `push/` | the exported model; models that wait to be pushed to the Hub |
| `scores.json`, `predictions/` | the scores and the predictions of a fine-tuning |
| `label_errors.csv` | the labels of its dev split, or of all folds, that may be wrong |
| `calibration.json` | the temperature of its probabilities, or the thresholds of its labels |
| `bad_rows.jsonl` | the rows of the user's files that a fine-tuning leaves out |
| `evaluation.json` | its data, its scores beside simple baselines, and the scores of slices |
| `leaks.jsonl` | the rows of its dev and test splits that are in its train split, too |
| `report.html` | the report of the run, a page for any browser |
| `trackers/` | which runs in experiment trackers show this run, and files of the trackers |
| `hosts/` | files that show which hosts wait for others when a run starts |
"""

RUN_FILE = "run.json"
SPARE_FILE = ".run.json"
LOCK_FILE = "run.lock"
TOKENIZER = "tokenizer"
MODEL = "model"
PREDICTIONS = "predictions"
HOSTS = "hosts"
CHECKPOINTS = "checkpoints"
DAMAGED = "damaged"
REPLACED = "replaced"
ROLLED_BACK = "rolled_back"
DELETED = "deleted"
METRICS = "metrics.jsonl"
EVENT_FILES = "events.out.tfevents.*"
LEDGER = "goodput.jsonl"
PRESENT = ".goodput.json"
PROCESSES = "processes.jsonl"
ROLLBACKS = "rollbacks.json"
SCORES = "scores.json"
CALIBRATION = "calibration.json"
BAD_ROWS = "bad_rows.jsonl"
LEAKS = "leaks.jsonl"
EVALUATION = "evaluation.json"
LABEL_ERRORS = "label_errors.csv"
REPORT = "report.html"
TRACKERS_FOLDER = "trackers"
PENDING = "push"
# What a run leaves in its workdir that another run there must not find.
RESULTS = (
    CHECKPOINTS,
    ROLLBACKS,
    MODEL,
    PREDICTIONS,
    SCORES,
    BAD_ROWS,
    LEAKS,
    EVALUATION,
    LABEL_ERRORS,
    CALIBRATION,
    DAMAGED,
    REPLACED,
    ROLLED_BACK,
    PENDING,
    TRACKERS_FOLDER,
    LEDGER,
    PRESENT,
    PROCESSES,
    REPORT,
)
# What an output of another command must not replace: all but the report, which can be written anew.
RUN_NAMES = {*RESULTS, RUN_FILE, SPARE_FILE, LOCK_FILE, TOKENIZER, METRICS, HOSTS} - {REPORT}
