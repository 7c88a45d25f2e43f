package dev.persist.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TableSummary;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The collections of a location as tables of Spark SQL.
 *
 * <p>The text before the last dot of a collection's name is a namespace: {@code persist.shop.orders} is the collection
 * {@code shop.orders}, and {@code persist.orders} is {@code orders}. Options of the catalog: {@code location}, and
 * {@code storage.NAME} for each option of the store.
 */
public final class PersistCatalog implements StagingTableCatalog, SupportsNamespaces {
  private String name;
  private final Map<String, Object> place = new HashMap<>();
  private final Set<List<String>> created = ConcurrentHashMap.newKeySet();

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    if (options.get("location") == null)
      throw PersistException.of("spark.sql.catalog." + name + ".location is not set: set it to a folder or a URL");
    place.put("location", options.get("location"));
    Map<String, String> storage = new HashMap<>();
    options.asCaseSensitiveMap().forEach((key, value) -> {
      if (key.startsWith("storage.")) storage.put(key.substring("storage.".length()), value);
    });
    place.put("storage", storage);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Set<TableCatalogCapability> capabilities() {
    return EnumSet.of(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
  }

  /** Return the arguments of a call about this location. */
  Map<String, Object> arguments(Object... pairs) {
    Map<String, Object> all = new LinkedHashMap<>(place);
    for (int at = 0; at < pairs.length; at += 2) all.put((String) pairs[at], pairs[at + 1]);
    return all;
  }

  static String nameOf(Identifier table) {
    List<String> words = new ArrayList<>(Arrays.asList(table.namespace()));
    words.add(table.name());
    return String.join(".", words);
  }

  private static Identifier identifierOf(String collection) {
    String[] words = collection.split("\\.", -1);
    return Identifier.of(Arrays.copyOf(words, words.length - 1), words[words.length - 1]);
  }

  @Override
  public Identifier[] listTables(String[] namespace) {
    List<Identifier> tables = new ArrayList<>();
    for (JsonNode collection : Python.ask("names", arguments())) {
      Identifier table = identifierOf(collection.asText());
      if (Arrays.equals(table.namespace(), namespace)) tables.add(table);
    }
    return tables.toArray(Identifier[]::new);
  }

  @Override
  public TableSummary[] listTableSummaries(String[] namespace) {
    return Arrays.stream(listTables(namespace))
        .map(table -> TableSummary.of(table, TableSummary.MANAGED_TABLE_TYPE))
        .toArray(TableSummary[]::new);
  }

  @Override
  public Table loadTable(Identifier table) throws NoSuchTableException {
    return load(table, "latest", null);
  }

  @Override
  public Table loadTable(Identifier table, String version) throws NoSuchTableException {
    return load(table, "version", version);
  }

  @Override
  public Table loadTable(Identifier table, long microseconds) throws NoSuchTableException {
    return load(table, "timestamp", microseconds);
  }

  private PersistTable load(Identifier table, String kind, Object time) throws NoSuchTableException {
    JsonNode found = Python.ask("describe", arguments("name", nameOf(table), "kind", kind, "time", time));
    if (found.isNull()) throw new NoSuchTableException(table);
    return new PersistTable(this, nameOf(table), found);
  }

  @Override
  public Changelog loadChangelog(Identifier table, ChangelogContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    return new PersistChangelog(load(table, "latest", null), context);
  }

  @Override
  public Table createTable(Identifier table, TableInfo info) throws TableAlreadyExistsException {
    return create(table, info);
  }

  /** Create the collection of CREATE TABLE AS SELECT, empty; it is dropped again if the query fails. */
  @Override
  public StagedTable stageCreate(Identifier table, TableInfo info) throws TableAlreadyExistsException {
    return new CreatedTable(create(table, info));
  }

  @Override
  public StagedTable stageReplace(Identifier table, TableInfo info) {
    throw PersistException.of("a collection keeps its history, so it is not replaced: use INSERT OVERWRITE "
        + nameOf(table) + ", or ALTER TABLE for its columns, or DROP TABLE first");
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier table, TableInfo info) {
    try {
      return stageCreate(table, info);
    } catch (TableAlreadyExistsException error) {
      return stageReplace(table, info);
    }
  }

  private PersistTable create(Identifier table, TableInfo info) throws TableAlreadyExistsException {
    List<String> key = new ArrayList<>();
    for (Constraint constraint : info.constraints()) {
      if (!(constraint instanceof PrimaryKey primary))
        throw PersistException.of("persist checks no constraint but PRIMARY KEY: leave out " + constraint.toDDL());
      Arrays.stream(primary.columns()).forEach(column -> key.add(String.join(".", column.fieldNames())));
    }
    if (info.partitions().length > 0)
      throw PersistException.of("collections have no partitions: leave out PARTITIONED BY; rows are in the order of the key");
    for (Column column : info.columns()) if (column.defaultValue() != null)
      throw PersistException.of("collections have no DEFAULT: leave it out of " + column.name());
    JsonNode created = Python.ask("create", arguments("name", nameOf(table), "schema", info.schema().json(), "key", key,
        "properties", info.properties()));
    if (!created.asBoolean()) throw new TableAlreadyExistsException(table);
    try {
      return load(table, "latest", null);
    } catch (NoSuchTableException error) {
      throw PersistException.of(nameOf(table) + " was dropped as soon as it was created");
    }
  }

  @Override
  public Table alterTable(Identifier table, TableChange... changes) throws NoSuchTableException {
    List<Map<String, Object>> all = new ArrayList<>();
    for (TableChange change : changes) all.add(Changes.describe(change));
    JsonNode altered = Python.ask("alter", arguments("name", nameOf(table), "changes", all));
    if (!altered.asBoolean()) throw new NoSuchTableException(table);
    return loadTable(table);
  }

  @Override
  public boolean dropTable(Identifier table) {
    return Python.ask("drop", arguments("name", nameOf(table), "id", null)).asBoolean();
  }

  @Override
  public void renameTable(Identifier table, Identifier renamed) throws NoSuchTableException, TableAlreadyExistsException {
    // Spark gives the new name as it was written, perhaps with the name of the catalog.
    String[] words = renamed.namespace();
    if (words.length > 0 && words[0].equals(name))
      renamed = Identifier.of(Arrays.copyOfRange(words, 1, words.length), renamed.name());
    String outcome = Python.ask("rename", arguments("name", nameOf(table), "renamed", nameOf(renamed))).asText();
    if (outcome.equals("missing")) throw new NoSuchTableException(table);
    if (outcome.equals("taken")) throw new TableAlreadyExistsException(renamed);
  }

  private List<String[]> namespaces() {
    List<String[]> all = new ArrayList<>();
    for (JsonNode collection : Python.ask("names", arguments())) {
      String[] words = identifierOf(collection.asText()).namespace();
      for (int length = 1; length <= words.length; length++) {
        String[] namespace = Arrays.copyOf(words, length);
        if (all.stream().noneMatch(other -> Arrays.equals(other, namespace))) all.add(namespace);
      }
    }
    return all;
  }

  @Override
  public String[][] listNamespaces() {
    return namespaces().stream().filter(words -> words.length == 1).toArray(String[][]::new);
  }

  @Override
  public String[][] listNamespaces(String[] parent) throws NoSuchNamespaceException {
    if (!namespaceExists(parent)) throw new NoSuchNamespaceException(parent);
    return namespaces().stream()
        .filter(words -> words.length == parent.length + 1 && Arrays.equals(Arrays.copyOf(words, parent.length), parent))
        .toArray(String[][]::new);
  }

  /** A namespace exists with its first table, or once this session has created it. */
  @Override
  public boolean namespaceExists(String[] namespace) {
    return namespace.length == 0 || created.contains(List.of(namespace)) || namespaces().stream().anyMatch(words -> Arrays.equals(words, namespace));
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    if (!namespaceExists(namespace)) throw new NoSuchNamespaceException(namespace);
    return Map.of();
  }

  /** Note the namespace for this session: others see it with its first table. */
  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    created.add(List.of(namespace));
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw PersistException.of("namespaces have no properties: a namespace is the first part of its tables' names");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw PersistException.of("a namespace goes with its last table: drop its tables");
  }
}
