# kvfrontier: from a campaign file (config/campaigns/NAME.yaml) to a frontier. One `measure` job is one shard of cells.
#   snakemake --profile profiles/local                        the campaign that config/config.yaml names
#   snakemake --profile profiles/local --config campaign=NAME another one
# results/CAMPAIGN/: plan/ inputs/ cells/ store/ ledgers/ CAMPAIGN.duckdb report.html figures/ logs/
from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.10")


include: "workflow/rules/plan.smk"
include: "workflow/rules/fetch.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/store.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        f"{RESULTS}/verdict.txt",
    message:
        "Done"
