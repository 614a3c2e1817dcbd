"""Prepare data with Spark for training: clean a log, standardize its columns, and write shards for the trainers.

The log is made first, as CSV, because there is none: sensors report three readings, some lines are damaged, and an
alarm is what the training has to predict.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

READINGS = ("heat", "pressure", "noise")


def make_log(spark: SparkSession, path: Path, lines: int) -> None:
    """Write the log. Of every 50 lines, one has no number for its heat, and one comes twice."""
    readings = spark.range(lines).select(
        f.col("id").alias("line"),
        (80 + 10 * f.randn(seed=1)).alias("heat"),
        (5 + 0.2 * f.randn(seed=2)).alias("pressure"),
        (40 + 25 * f.randn(seed=3)).alias("noise"),
    )
    score = (f.col("heat") - 80) / 10 - 2 * (f.col("pressure") - 5) / 0.2
    log = readings.withColumn("alarm", (score > 0).cast("int"))
    log = log.withColumn("heat", f.when(f.col("line") % 50 == 7, "?").otherwise(f.col("heat").cast("string")))
    log.union(log.where("line % 50 = 9")).write.csv(str(path), header=True, mode="overwrite")


def clean(spark: SparkSession, path: Path) -> DataFrame:
    """Read the log without damaged and repeated lines."""
    schema = "line long, heat double, pressure double, noise double, alarm int"
    return spark.read.csv(str(path), header=True, schema=schema).dropna().dropDuplicates(["line"])


def standardized(log: DataFrame) -> DataFrame:
    """Return each reading with mean 0 and standard deviation 1 over all lines."""
    found = log.select(*(one(name).alias(f"{one.__name__}_{name}") for one in (f.mean, f.stddev) for name in READINGS))
    by_name = found.first().asDict()
    columns = [((f.col(n) - by_name[f"mean_{n}"]) / by_name[f"stddev_{n}"]).alias(n) for n in READINGS]
    return log.select(*columns, "alarm")


def write_shard(directory: str, number: int, rows: Iterable[Row]) -> Iterator[int]:
    """Write one partition as a file of arrays; runs on the workers. Yields the number of its rows."""
    table = np.array([tuple(row) for row in rows], dtype=np.float32)
    np.savez(Path(directory) / f"shard-{number:03}.npz", inputs=table[:, :-1], targets=table[:, -1])
    yield len(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the log and the shards go, on the shared directory")
    parser.add_argument("--lines", type=int, default=20_000, help="the length of the log (%(default)s)")
    parser.add_argument("--shards", type=int, default=8, help="how many shards to write (%(default)s)")
    arguments = parser.parse_args()

    spark = (
        SparkSession.builder.appName("prepare").config("spark.sql.shuffle.partitions", arguments.shards).getOrCreate()
    )
    make_log(spark, arguments.directory / "log", arguments.lines)
    shards = arguments.directory / "shards"
    shutil.rmtree(shards, ignore_errors=True)
    shards.mkdir(parents=True)
    rows = standardized(clean(spark, arguments.directory / "log")).repartition(arguments.shards).rdd
    target = str(shards)
    counts = rows.mapPartitionsWithIndex(lambda number, part: write_shard(target, number, part)).collect()
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print(f"{sum(counts):,} of {arguments.lines:,} lines in {len(counts)} shards, by {executors} executors")


if __name__ == "__main__":
    main()
