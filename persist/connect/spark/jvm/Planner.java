package dev.persist.spark;

/** The calls of a catalog to Python, which plans all reads and does all writes. A Python object implements it. */
public interface Planner {
  /**
   * Answer one call.
   *
   * @param name of the call, such as "describe" or "read"
   * @param arguments a JSON object
   * @param session the session of Spark that asks, a {@code SparkSession}
   * @param frame the rows of a write, a {@code Dataset}; null for other calls
   * @param where the condition of an overwrite, a {@code Column}; null for other calls
   * @return a JSON text, or the {@code Dataset} of a read; a text that begins with "!" is an error
   */
  Object call(String name, String arguments, Object session, Object frame, Object where);
}
