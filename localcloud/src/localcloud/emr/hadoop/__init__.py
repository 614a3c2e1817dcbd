"""What EMR installs beside the nodes' image: stand-ins for YARN, in Python, without Java, Spark or HDFS."""
