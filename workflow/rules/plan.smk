# The plan is made here, once, in the process the user started; the jobs it starts read it from disk.
import logging

from kvfrontier.errors import KVFrontierError
from kvfrontier.run.session import chosen_campaign, open_campaign

# Said for every job, whatever `quiet` is; the log file leaves them out, too.
CHATTER = (
    "Select jobs to execute",
    "Execute ",
    "Using shell: ",
    "Conda environments: ignored",
    "No SLURM account given",
    "No account was given",
    "Unable to guess SLURM account",
    "Cleaning up SLURM log files",
)
logging.getLogger("snakemake.logging").addFilter(
    lambda record: not str(record.msg).startswith(CHATTER)
)

try:
    PLAN = open_campaign(
        chosen_campaign(config),
        is_main=workflow.is_main_process,
        is_dry=workflow.dryrun,
    )
except (KVFrontierError, OSError) as error:
    raise WorkflowError(str(error)) from None

CAMPAIGN = PLAN.campaign
RESULTS = PLAN.campaign_dir.as_posix()
if set("{}") & set(RESULTS):
    raise WorkflowError(
        f"{RESULTS}: braces in this path would be wildcards; set KVFRONTIER_RESULTS to another one"
    )


# Names of files, never of folders: a target such as results/x/ledgers/../../y.json is nobody's.
wildcard_constraints:
    shard=r"[^/]+",
    receipt=r"[^/]+",
