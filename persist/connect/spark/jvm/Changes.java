package dev.persist.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** The changes of ALTER TABLE as JSON: an object with "kind", "column" (its path) and what the kind needs. */
final class Changes {
  private Changes() {}

  static Map<String, Object> describe(TableChange change) {
    Map<String, Object> described = new HashMap<>();
    if (change instanceof TableChange.ColumnChange column) described.put("column", column.fieldNames());
    if (change instanceof TableChange.AddColumn add) {
      if (add.position() != null)
        throw PersistException.of("a new column is the last one: leave out FIRST and AFTER");
      if (add.defaultValue() != null)
        throw PersistException.of("collections have no DEFAULT: leave it out of " + String.join(".", add.fieldNames()));
      described.put("kind", "add");
      described.put("type", typed(add.dataType()));
      described.put("nullable", add.isNullable());
      described.put("comment", add.comment());
    } else if (change instanceof TableChange.RenameColumn rename) {
      described.put("kind", "rename");
      described.put("name", rename.newName());
    } else if (change instanceof TableChange.DeleteColumn) {
      described.put("kind", "drop");
    } else if (change instanceof TableChange.UpdateColumnType type) {
      described.put("kind", "type");
      described.put("type", typed(type.newDataType()));
    } else if (change instanceof TableChange.UpdateColumnComment comment) {
      described.put("kind", "comment");
      described.put("comment", comment.newComment());
    } else if (change instanceof TableChange.SetProperty property) {
      described.put("kind", "property");
      described.put("name", property.property());
      described.put("value", property.value());
    } else if (change instanceof TableChange.RemoveProperty property) {
      described.put("kind", "property");
      described.put("name", property.property());
      described.put("value", null);
    } else {
      throw PersistException.of("collections have no " + change.getClass().getSimpleName()
          + ": ALTER TABLE can ADD, RENAME and DROP columns, change a TYPE or COMMENT, and set TBLPROPERTIES");
    }
    return described;
  }

  /** Return a type as the JSON of a schema with one column. */
  private static String typed(DataType type) {
    return new StructType().add("column", type).json();
  }
}
