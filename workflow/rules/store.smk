rule store:
    input:
        ledgers=PLAN.ledgers,
        published=PLAN.published,
    output:
        f"{RESULTS}/{CAMPAIGN}.duckdb",
    log:
        f"{RESULTS}/logs/store.log",
    message:
        "Publishing {output}"
    shell:
        "kvfrontier store {CAMPAIGN:q} > {log:q} 2>&1"
