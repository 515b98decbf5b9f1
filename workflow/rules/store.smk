rule store:
    input:
        ledgers=PLAN.ledgers,
        published=PLAN.published,
    output:
        f"{RESULTS}/{CAMPAIGN}.duckdb",
    log:
        f"{RESULTS}/logs/store.log",
    conda:
        "../../envs/core.yaml"
    params:
        campaign=CAMPAIGN,
    message:
        "Publishing {output}"
    shell:
        "kvfrontier store {params.campaign:q} > {log:q} 2>&1"
