# Read by Spark's launcher script, in bash, just before it starts Java (see txn/session.py).
#
# Spark 4 always adds a JDK module for which Java prints one warning, and Java has no switch for
# it. Only that line is taken out; whatever else Java says on stderr passes as it comes.
exec 2> >(exec grep --line-buffered -v '^WARNING: Using incubator modules: jdk\.incubator\.vector$' >&2)
# Java itself is to see the ordinary configuration folder: a folder with files on its class path
# would rule out the class archive.
unset SPARK_CONF_DIR
