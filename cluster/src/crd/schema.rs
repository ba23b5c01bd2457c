//! Owns the few building blocks of which the schemas of our kinds are made; knows no kind.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};

/// A structural schema.
pub(super) type Schema = JSONSchemaProps;

/// RFC 1123 label.
const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// Group of an API; empty for core kinds.
const GROUP: &str = r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// Kind of an API.
const KIND: &str = "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$";
/// What an address or a network can look like; the webhook reads it.
const CIDR: &str = "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$";

/// A field of an object.
pub(super) struct Field {
    name: &'static str,
    schema: Schema,
    required: bool,
}

pub(super) fn req(name: &'static str, schema: Schema) -> Field {
    Field {
        name,
        schema,
        required: true,
    }
}

pub(super) fn opt(name: &'static str, schema: Schema) -> Field {
    Field {
        name,
        schema,
        required: false,
    }
}

fn of_type(type_: &str, description: &str) -> Schema {
    Schema {
        type_: Some(type_.to_owned()),
        description: Some(description.to_owned()),
        ..Schema::default()
    }
}

pub(super) fn object(description: &str, fields: impl IntoIterator<Item = Field>) -> Schema {
    let mut schema = of_type("object", description);
    let mut required = Vec::new();
    let properties = schema.properties.get_or_insert_default();
    for field in fields {
        if field.required {
            required.push(field.name.to_owned());
        }
        properties.insert(field.name.to_owned(), field.schema);
    }
    required.sort();
    schema.required = (!required.is_empty()).then_some(required);
    schema
}

/// An object of which the API server keeps what it wants to (`metadata`).
pub(super) fn plain_object() -> Schema {
    Schema {
        type_: Some("object".to_owned()),
        ..Schema::default()
    }
}

/// An object that is kept as it is; for what contains itself, which a structural schema cannot say.
pub(super) fn any_object(description: &str) -> Schema {
    Schema {
        x_kubernetes_preserve_unknown_fields: Some(true),
        ..of_type("object", description)
    }
}

pub(super) fn string(description: &str) -> Schema {
    of_type("string", description)
}

pub(super) fn boolean(description: &str) -> Schema {
    of_type("boolean", description)
}

pub(super) fn number(description: &str, minimum: f64) -> Schema {
    Schema {
        minimum: Some(minimum),
        ..of_type("number", description)
    }
}

pub(super) fn integer(description: &str, minimum: u32, maximum: Option<u32>) -> Schema {
    Schema {
        format: Some("int64".to_owned()),
        minimum: Some(minimum.into()),
        maximum: maximum.map(f64::from),
        ..of_type("integer", description)
    }
}

/// A port by number.
pub(super) fn port(description: &str) -> Schema {
    Schema {
        format: Some("int32".to_owned()),
        ..integer(description, 1, Some(65_535))
    }
}

pub(super) fn int_or_string(description: &str) -> Schema {
    Schema {
        description: Some(description.to_owned()),
        x_kubernetes_int_or_string: Some(true),
        ..Schema::default()
    }
}

pub(super) fn choice(description: &str, values: &[&str]) -> Schema {
    let values = values.iter().map(|&value| JSON(value.into()));
    Schema {
        enum_: Some(values.collect()),
        ..string(description)
    }
}

pub(super) fn list(description: &str, items: Schema) -> Schema {
    Schema {
        items: Some(JSONSchemaPropsOrArray::Schema(Box::new(items))),
        ..of_type("array", description)
    }
}

pub(super) fn at_most(max: i64, list: Schema) -> Schema {
    Schema {
        max_items: Some(max),
        ..list
    }
}

pub(super) fn not_empty(list: Schema) -> Schema {
    Schema {
        min_items: Some(1),
        ..list
    }
}

/// A text whose length has both limits, which the cost of rules about it needs.
pub(super) fn bounded(schema: Schema, min: i64, max: i64) -> Schema {
    Schema {
        min_length: Some(min),
        max_length: Some(max),
        ..schema
    }
}

pub(super) fn pattern(schema: Schema, pattern: &str) -> Schema {
    Schema {
        pattern: Some(pattern.to_owned()),
        ..schema
    }
}

pub(super) fn with_default(schema: Schema, value: impl Into<serde_json::Value>) -> Schema {
    Schema {
        default: Some(JSON(value.into())),
        ..schema
    }
}

/// Adds a rule in the Common Expression Language and the sentence for whoever breaks it.
pub(super) fn rule(mut schema: Schema, rule: &str, message: &str) -> Schema {
    let rules = schema.x_kubernetes_validations.get_or_insert_default();
    rules.push(ValidationRule {
        rule: rule.to_owned(),
        message: Some(message.to_owned()),
        ..ValidationRule::default()
    });
    schema
}

pub(super) fn label(description: &str) -> Schema {
    pattern(bounded(string(description), 1, 63), LABEL)
}

pub(super) fn group(description: &str) -> Schema {
    pattern(bounded(string(description), 0, 253), GROUP)
}

pub(super) fn kind(description: &str) -> Schema {
    pattern(bounded(string(description), 1, 63), KIND)
}

pub(super) fn name(description: &str) -> Schema {
    bounded(string(description), 1, 253)
}

/// Texts by name, such as labels.
fn texts(description: &str) -> Schema {
    let value = Schema {
        type_: Some("string".to_owned()),
        ..Schema::default()
    };
    Schema {
        additional_properties: Some(JSONSchemaPropsOrBool::Schema(Box::new(value))),
        ..of_type("object", description)
    }
}

/// A label selector.
pub(super) fn selector(description: &str) -> Schema {
    let requirement = object(
        "A condition on one label.",
        [
            req("key", string("Name of the label.")),
            req(
                "operator",
                choice(
                    "How its value is compared.",
                    &["In", "NotIn", "Exists", "DoesNotExist"],
                ),
            ),
            opt(
                "values",
                list(
                    "Values for In and NotIn; none for the others.",
                    string("A value."),
                ),
            ),
        ],
    );
    object(
        description,
        [
            opt(
                "matchLabels",
                texts("Labels and the values they must have."),
            ),
            opt(
                "matchExpressions",
                list("Conditions, all of which must hold.", requirement),
            ),
        ],
    )
}

/// Networks less some of their parts.
pub(super) fn networks(description: &str) -> Schema {
    let address = |description| pattern(bounded(string(description), 1, 64), CIDR);
    let network = object(
        "A network less some of its parts.",
        [
            req("cidr", address("A network, or a single address.")),
            opt(
                "except",
                list(
                    "Parts of it that do not count.",
                    address("A network, or a single address."),
                ),
            ),
        ],
    );
    list(description, network)
}

/// A reference to an object of the same namespace.
pub(super) fn local_ref(description: &str) -> Schema {
    object(description, reference())
}

/// A reference to an object of any namespace.
pub(super) fn namespaced_ref(description: &str) -> Schema {
    let namespace = opt(
        "namespace",
        bounded(
            string("Its namespace; that of this object if it is absent."),
            0,
            63,
        ),
    );
    object(description, reference().into_iter().chain([namespace]))
}

fn reference() -> [Field; 3] {
    [
        opt("group", group("Its API group; empty for core kinds.")),
        req("kind", kind("Its kind.")),
        req("name", name("Its name.")),
    ]
}
