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
except KVFrontierError as error:
    raise WorkflowError(str(error)) from None

CAMPAIGN = PLAN.campaign
RESULTS = PLAN.campaign_dir.as_posix()
