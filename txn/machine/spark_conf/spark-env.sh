# Read by Spark's launcher script, in bash, just before it starts Java (see txn/session.py).
#
# Spark always adds a JDK module for which Java prints one warning, and opens a package for which
# Java 24 and newer print another. Java has no switch for them. Only these lines are taken out;
# whatever else Java says on stderr passes as it comes.
exec 2> >(exec grep --line-buffered -vx -e 'WARNING: Using incubator modules: jdk\.incubator\.vector' \
  -e 'WARNING: package sun\.security\.action not in java\.base' >&2)
# Java itself is to see the ordinary configuration folder: a folder with files on its class path
# would rule out the class archive.
unset SPARK_CONF_DIR
