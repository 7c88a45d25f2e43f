package dev.persist.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.Py4JServer;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * The Python process that plans for this JVM: the driver of PySpark, or one that is started at the first call.
 *
 * <p>{@code spark-sql}, a Spark Connect server and a driver in Scala have no Python. There the process of
 * {@code spark.pyspark.driver.python}, {@code spark.pyspark.python} or {@code python3} is started; it ends with this JVM.
 */
public final class Python {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long START_S = 120;
  private static volatile Planner planner;
  private static volatile CountDownLatch registered = new CountDownLatch(1);
  private static volatile Process process; // Null where PySpark is the driver.

  private Python() {}

  /** Set the planner of catalogs; Python calls this. */
  public static void register(Planner given) {
    planner = given;
    registered.countDown();
  }

  /** Return the answer to a call as JSON. */
  static JsonNode ask(String name, Map<String, Object> arguments) {
    return ask(name, arguments, null, null);
  }

  static JsonNode ask(String name, Map<String, Object> arguments, Dataset<Row> frame, Column where) {
    return parse((String) call(null, name, arguments, frame, where));
  }

  /** Return the rows that answer a call, or null; {@code from} is the planner, null for the planner of catalogs. */
  @SuppressWarnings("unchecked")
  static org.apache.spark.sql.classic.Dataset<Row> rows(Planner from, String name, Map<String, Object> arguments) {
    Object answer = call(from, name, arguments, null, null);
    return answer instanceof String ? null : (org.apache.spark.sql.classic.Dataset<Row>) answer;
  }

  static JsonNode parse(String text) {
    try {
      return JSON.readTree(text);
    } catch (JsonProcessingException error) {
      throw new UncheckedIOException(error);
    }
  }

  static <T> T convert(JsonNode node, Class<T> type) {
    return JSON.convertValue(node, type);
  }

  /** Return the answer of a planner; throw a PersistException if it is an error. */
  private static Object call(
      Planner from, String name, Map<String, Object> arguments, Dataset<Row> frame, Column where) {
    if (from == null && !isRunning()) start();
    Object answer;
    try {
      answer = (from == null ? planner : from)
          .call(name, JSON.writeValueAsString(arguments), SparkSession.active(), frame, where);
    } catch (JsonProcessingException error) {
      throw new UncheckedIOException(error);
    }
    if (answer instanceof String text && text.startsWith("!")) throw PersistException.of(text.substring(1));
    return answer;
  }

  private static boolean isRunning() {
    return planner != null && (process == null || process.isAlive());
  }

  /** Start a Python process, and wait until it has registered its planner. */
  private static synchronized void start() {
    if (isRunning()) return;
    planner = null;
    registered = new CountDownLatch(1);
    SparkConf conf = SparkContext.getOrCreate().getConf();
    Py4JServer server = new Py4JServer(conf);
    server.start();
    String python = conf.get("spark.pyspark.driver.python", conf.get("spark.pyspark.python", "python3"));
    ProcessBuilder builder = new ProcessBuilder(python, "-m", "persist.connect.spark.catalog").inheritIO();
    builder.redirectInput(ProcessBuilder.Redirect.PIPE);
    builder.environment().putIfAbsent("PYSPARK_PYTHON", conf.get("spark.pyspark.python", python));
    builder.environment().put("PYSPARK_GATEWAY_PORT", String.valueOf(server.getListeningPort()));
    builder.environment().put("PYSPARK_GATEWAY_SECRET", server.secret());
    try {
      Process started = builder.start();
      process = started;
      Runtime.getRuntime().addShutdownHook(new Thread(started::destroy, "persist-python"));
      for (long waited = 0; !registered.await(1, TimeUnit.SECONDS); waited++) {
        if (!started.isAlive() || waited >= START_S) {
          started.destroy();
          server.shutdown();
          throw PersistException.of(
              python + " -m persist.connect.spark.catalog did not start: set spark.pyspark.driver.python to a Python "
                  + "that has persist and pyspark installed");
        }
      }
    } catch (IOException error) {
      throw PersistException.of(python + " cannot be started: set spark.pyspark.driver.python. " + error.getMessage());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw PersistException.of("interrupted while Python starts");
    }
  }
}
