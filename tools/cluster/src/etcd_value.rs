//! Parses values of etcd strictly: they are bytes from outside.
//!
//! A value is one JSON object of bounded size and depth. A field twice, `null`, fractions and
//! bytes behind the object are refused, so that two readers cannot understand it differently.

use crate::object_name::Fields;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Bytes of the longest value.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Fields, list items and strings that one value has.
const ITEMS_MAX: usize = 4096;
/// How deep lists and tables may stand in each other.
const DEPTH_MAX: usize = 6;

/// The fields that a value has.
///
/// # Errors
/// What is wrong with it, in words for an operator.
pub fn parse(bytes: &[u8]) -> Result<Fields, String> {
    if bytes.len() > VALUE_BYTES_MAX {
        return Err(format!("{} bytes are more than {VALUE_BYTES_MAX}", bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let mut items = 0;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict { depth: 0, items: &mut items }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| error.to_string())?;
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err("it is not a JSON object".into()),
    }
}

/// The value that has these fields.
#[must_use]
pub fn text(fields: &Fields) -> String {
    Value::Object(fields.clone()).to_string()
}

struct Strict<'a> {
    depth: usize,
    items: &'a mut usize,
}

impl Strict<'_> {
    /// One thing more, at this depth.
    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.items += 1;
        match (self.depth > DEPTH_MAX, *self.items > ITEMS_MAX) {
            (true, _) => Err(E::custom(format!("it is nested more than {DEPTH_MAX} deep"))),
            (_, true) => Err(E::custom(format!("it has more than {ITEMS_MAX} parts"))),
            _ => Ok(()),
        }
    }

    fn below(&mut self) -> Strict<'_> {
        Strict { depth: self.depth + 1, items: self.items }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a whole number, true, false, a list or a table")
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<Value, E> {
        self.count().map(|()| value.into())
    }

    fn visit_u64<E: Error>(mut self, value: u64) -> Result<Value, E> {
        self.count().map(|()| value.into())
    }

    fn visit_i64<E: Error>(mut self, value: i64) -> Result<Value, E> {
        self.count().map(|()| value.into())
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<Value, E> {
        self.count().map(|()| value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        self.count::<A::Error>()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self.below())? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut table: A) -> Result<Value, A::Error> {
        self.count::<A::Error>()?;
        let mut fields = Map::new();
        while let Some(key) = table.next_key::<String>()? {
            let value = table.next_value_seed(self.below())?;
            if fields.contains_key(&key) {
                return Err(A::Error::custom(format!("the field {key:?} is there twice")));
            }
            fields.insert(key, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_taken() {
        let fields = parse(br#"{"policies": ["a", "b"], "rate": "5gbit", "n": 3, "on": true}"#);
        assert_eq!(fields.unwrap()["policies"], serde_json::json!(["a", "b"]));
        assert_eq!(parse(b" {} ").unwrap(), Fields::new());
    }

    #[test]
    fn ambiguous_values_are_refused() {
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(50), "]".repeat(50));
        let many = format!("{{\"a\": [{}0]}}", "0,".repeat(ITEMS_MAX));
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(VALUE_BYTES_MAX));
        for (text, word) in [
            (r#"{"a": 1, "a": 2}"#, "twice"),
            (r#"{"a": {"b": 1, "b": 2}}"#, "twice"),
            (r#"{"a": null}"#, "null"),
            (r#"{"a": 1.5}"#, "floating"),
            (r#"{"a": 1} {"#, "trailing"),
            (r#"{"a": 1"#, "EOF"),
            ("", "EOF"),
            ("[]", "not a JSON object"),
            (&deep, "deep"),
            (&many, "parts"),
            (&long, "bytes"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(parse(b"{\"a\": \"\xff\"}").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200),
                                           words in "[\\[\\]{}\",:a01.-]{0,60}") {
            for bytes in [bytes, words.into_bytes()] {
                if let Ok(fields) = parse(&bytes) {
                    prop_assert_eq!(parse(text(&fields).as_bytes()), Ok(fields));
                }
            }
        }
    }
}
