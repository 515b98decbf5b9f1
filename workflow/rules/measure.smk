from kvfrontier.run.needs import Needs, site_of

DEFAULTS = workflow.resource_settings.default_resources or {}
NEEDS = Needs(PLAN.index, site_of(DEFAULTS.items()), workflow.is_main_process)


# The ledger's name holds the hash of its cells, so "missing or not" is all that Snakemake has to decide.
rule measure:
    input:
        ancient(PLAN.inputs_of),
    output:
        f"{RESULTS}/ledgers/{{shard}}.json",
    log:
        f"{RESULTS}/logs/measure/{{shard}}.log",
    conda:
        "../../envs/core.yaml"
    resources:
        **NEEDS.resources(),
        device=1,
        ray_address="",
    params:
        campaign=CAMPAIGN,
        launcher=NEEDS.launcher,
        ray=lambda wildcards, resources: (
            ["--ray-address", resources.ray_address] if resources.ray_address else []
        ),
    message:
        "Measuring {wildcards.shard}"
    shell:
        "{params.launcher} kvfrontier measure {params.campaign:q} {wildcards.shard:q} --log {log:q} {params.ray:q}"
