# kvfrontier: from a campaign file (config/campaigns/NAME.yaml) to a frontier. One `measure` job is one shard of cells.
#   snakemake --profile profiles/local                        the campaign that config/config.yaml names
#   snakemake --profile profiles/local --config campaign=NAME another one
#   snakemake --profile profiles/slurm                        on a cluster: docs/cluster.md
#   snakemake --profile profiles/ray                          on a Ray cluster that is there
# results/CAMPAIGN/: plan/ inputs/ cells/ store/ ledgers/ CAMPAIGN.duckdb report.html figures/ logs/
import os

from kvfrontier.run.machine import CORES
from kvfrontier.run.slurm_watch import watch_for_lost_jobs
from kvfrontier.run.stop_jobs import stop_jobs_on_signal
from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.10")


# On a cluster these run where Snakemake does: they are cheap, or need the network.
localrules:
    all,
    fetch_model,
    fetch_data,
    store,
    report,
    verdict,


include: "workflow/rules/plan.smk"
include: "workflow/rules/fetch.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/store.smk"
include: "workflow/rules/report.smk"


onstart:
    stop_jobs_on_signal()
    os.environ.pop(CORES, None)
    if NEEDS.site:
        watch_for_lost_jobs()
    elif workflow.resource_settings.cores:
        os.environ[CORES] = str(workflow.resource_settings.cores)


rule all:
    default_target: True
    input:
        f"{RESULTS}/verdict.txt",
    message:
        "Done"
