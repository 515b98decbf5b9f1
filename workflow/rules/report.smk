rule report:
    input:
        f"{RESULTS}/{CAMPAIGN}.duckdb",
    output:
        f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../../envs/core.yaml"
    params:
        campaign=CAMPAIGN,
    message:
        "Drawing {output}"
    shell:
        "kvfrontier report {params.campaign:q} > {log:q} 2>&1"


# Last, so that failed cells never cost the report; without its output it runs, and tells, every time.
rule verdict:
    input:
        f"{RESULTS}/report.html",
    output:
        f"{RESULTS}/verdict.txt",
    log:
        f"{RESULTS}/logs/verdict.log",
    retries: 0
    conda:
        "../../envs/core.yaml"
    params:
        campaign=CAMPAIGN,
    message:
        "Checking that every cell came to something"
    shell:
        "kvfrontier check {params.campaign:q} --receipt {output:q} 2>&1 | tee {log:q}"
