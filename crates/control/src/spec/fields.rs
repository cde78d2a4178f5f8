//! Options by name. A specification is a structure with a field for each option, and serde gives the names; so a list of
//! options, a table or a setting needs no line for a new option.

use clap::{Args, Command, Id};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _};
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value};

use super::values::{OFF, ON, switch};

/// Why an option is not set.
#[derive(Debug, Eq, PartialEq)]
pub enum Refused {
    /// The specification has no such option.
    Unknown,
    Invalid(String),
}

/// All options with their values. None, if a path is not UTF-8.
fn all(spec: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => Map::new(),
    }
}

/// The text of a value, if the option has one: a switch that is off has.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::Bool(is_on) => Some(switch(*is_on).to_owned()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The options that differ from the defaults, each with its text. An option that is a list is one for each of its
/// members, which are a name and a value: `tenant-limit /a`.
pub fn stated<T: Serialize + Default>(spec: &T) -> impl Iterator<Item = (String, String)> {
    let defaults = all(&T::default());
    let stated = all(spec).into_iter().filter(move |(name, value)| defaults.get(name) != Some(value));
    stated.flat_map(|(name, value)| match value {
        Value::Array(members) => {
            let of_member = |member: Value| {
                let text = text(&member)?;
                let (of, value) = text.rsplit_once('=')?;
                Some((format!("{name} {of}"), value.to_owned()))
            };
            members.into_iter().filter_map(of_member).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            text(&value).map(|text| (name, text)).into_iter().collect::<Vec<_>>()
        }
    })
}

/// The text of an option.
pub fn text_of(spec: &impl Serialize, name: &str) -> Option<String> {
    all(spec).get(name).and_then(text)
}

/// Whether an option is on or off.
pub fn is_switch(spec: &impl Serialize, name: &str) -> bool {
    all(spec).get(name).is_some_and(Value::is_boolean)
}

/// Sets an option: a switch without a value to on, a list by adding a member.
///
/// # Errors
/// The option does not exist, or the value is invalid.
pub fn set<T: Serialize + DeserializeOwned>(spec: &mut T, name: &str, value: Option<&str>) -> Result<(), Refused> {
    let invalid = |why: String| Err(Refused::Invalid(why));
    match (all(spec).remove(name), value) {
        (None, _) => Err(Refused::Unknown),
        (Some(Value::Bool(_)), value) => match value {
            None | Some(ON) => put(spec, name, true.into()),
            Some(OFF) => put(spec, name, false.into()),
            Some(_) => invalid("neither on nor off".to_owned()),
        },
        (Some(_), None) => invalid(format!("it needs a value, as {name}=VALUE")),
        (Some(Value::Array(mut members)), Some(text)) => {
            members.push(text.into());
            put(spec, name, members.into())
        }
        (Some(_), Some(text)) => put(spec, name, text.into()),
    }
}

/// Sets an option to its default.
///
/// # Errors
/// The option does not exist.
pub fn reset<T: Serialize + DeserializeOwned + Default>(spec: &mut T, name: &str) -> Result<(), Refused> {
    let default = all(&T::default()).remove(name).ok_or(Refused::Unknown)?;
    put(spec, name, default)
}

fn put<T: Serialize + DeserializeOwned>(spec: &mut T, name: &str, value: Value) -> Result<(), Refused> {
    let mut fields = all(spec);
    *fields.get_mut(name).ok_or(Refused::Unknown)? = value;
    *spec = T::deserialize(Value::Object(fields)).map_err(|error| Refused::Invalid(error.to_string()))?;
    Ok(())
}

/// `spec`, with the options that `other` states.
///
/// # Errors
/// A path is not UTF-8.
pub fn overridden<T: Serialize + DeserializeOwned + Default>(spec: T, other: &T) -> serde_json::Result<T> {
    let (mut spec, mut other) = (serde_json::to_value(spec)?, serde_json::to_value(other)?);
    let defaults = all(&T::default());
    if let (Value::Object(fields), Value::Object(other)) = (&mut spec, &mut other) {
        other.retain(|name, value| defaults.get(name) != Some(value));
        fields.append(other);
    }
    T::deserialize(spec)
}

/// An option of a table, by its name.
pub(super) struct Field<'a, T>(pub(super) &'a mut T, pub(super) &'a str);

impl<'de, T: Serialize + DeserializeOwned> DeserializeSeed<'de> for Field<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self(spec, name) = self;
        put(spec, name, Value::deserialize(deserializer)?).map_err(|refused| match refused {
            Refused::Unknown => D::Error::custom(format!("unknown field `{name}`")),
            Refused::Invalid(why) => D::Error::custom(why),
        })
    }
}

/// The name of an option's value on the command line; `None`, if it has none.
pub fn value_name<T: Args>(name: &str) -> Option<String> {
    let command = T::augment_args(Command::new(""));
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name))?;
    let takes_values = argument.get_action().takes_values();
    argument.get_value_names().filter(|_| takes_values)?.first().map(ToString::to_string)
}

/// The ids of all options of a group on the command line.
pub fn ids<T: Args>() -> Vec<Id> {
    T::augment_args(Command::new("")).get_arguments().map(|argument| argument.get_id().clone()).collect()
}

/// Whether a group has an option with this name on the command line.
pub(super) fn is_on_command_line<T: Args>(name: &str) -> bool {
    T::augment_args(Command::new("")).get_arguments().any(|argument| argument.get_long() == Some(name))
}
