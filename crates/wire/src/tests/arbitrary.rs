//! Messages with random content: a deserializer that answers every question of a type by chance. It also learns the
//! form of each type that it meets, which `docs/wire.md` must show.
use serde::de::value::{Error, U32Deserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use std::collections::BTreeMap;

/// The fields of a structure, or the variants of an enumeration with the fields of each.
#[derive(Debug, PartialEq, Eq)]
pub enum Form {
    Fields(&'static [&'static str]),
    Variants(&'static [&'static str], BTreeMap<&'static str, &'static [&'static str]>),
}

/// The forms of types by their names.
pub type Forms = BTreeMap<&'static str, Form>;

/// A value that depends on the seed.
pub fn arbitrary<T: DeserializeOwned>(seed: u64) -> T {
    learn(seed, &mut Forms::new())
}

/// The same; adds the forms of the types in it.
pub fn learn<T: DeserializeOwned>(seed: u64, forms: &mut Forms) -> T {
    let mut chance = Chance { state: seed | 1, forms };
    T::deserialize(&mut chance).expect("every choice is allowed")
}

struct Chance<'f> {
    state: u64,
    forms: &'f mut Forms,
}

impl Chance<'_> {
    /// A number below a limit (SplitMix64).
    fn below(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// A number of any length.
    fn number(&mut self) -> u64 {
        let bits = self.below(64);
        self.below(u64::MAX) >> bits
    }

    /// Letters: a valid name, path, string or digest.
    fn letters(&mut self) -> String {
        (0..=self.below(20)).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.number() as $type)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Chance<'_> {
    type Error = Error;

    fn is_human_readable(&self) -> bool {
        false
    }

    numbers! {
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_f64 visit_f64 f64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        panic!("the type does not say what it needs");
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.below(2) == 1)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.letters())
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_byte_buf(self.letters().into_bytes())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.below(2) == 0 { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.below(3) as usize;
        visitor.visit_seq(Elements { chance: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { chance: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.forms.insert(name, Form::Fields(fields));
        if name == "RawShape" {
            // Few combinations of these are shapes.
            return visitor.visit_map(Pairs { chance: self, left: fields });
        }
        visitor.visit_seq(Elements { chance: self, left: fields.len() })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.forms.entry(name).or_insert_with(|| Form::Variants(variants, BTreeMap::new()));
        let index = self.below(variants.len() as u64) as usize;
        visitor.visit_enum(Choice { chance: self, name, variant: variants[index], index })
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u128 f32 char str bytes unit unit_struct tuple_struct map identifier
        ignored_any
    }
}

struct Elements<'a, 'f> {
    chance: &'a mut Chance<'f>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.chance).map(Some)
    }
}

/// The fields of a shape: any function, and one leaf that is longer than any file.
struct Pairs<'a, 'f> {
    chance: &'a mut Chance<'f>,
    left: &'static [&'static str],
}

impl<'de> MapAccess<'de> for Pairs<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.left.first() else { return Ok(None) };
        seed.deserialize((*name).into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((name, left)) = self.left.split_first() else { panic!("no key, no value") };
        self.left = left;
        match *name {
            "hash" => seed.deserialize(&mut *self.chance),
            "length" => seed.deserialize((self.chance.number() >> 2).into_deserializer()),
            _ => seed.deserialize((1u64 << 62).into_deserializer()),
        }
    }
}

struct Choice<'a, 'f> {
    chance: &'a mut Chance<'f>,
    name: &'static str,
    variant: &'static str,
    index: usize,
}

impl<'de> EnumAccess<'de> for Choice<'_, '_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let index: U32Deserializer<Error> = (self.index as u32).into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Choice<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.chance)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { chance: self.chance, left })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Some(Form::Variants(_, known)) = self.chance.forms.get_mut(self.name) {
            known.insert(self.variant, fields);
        }
        visitor.visit_seq(Elements { chance: self.chance, left: fields.len() })
    }
}
