//! Implements `#[derive(Event)]`, which `corebeat-trace` re-exports.
//!
//! Place in the loop: observe; a part of `corebeat-trace`.

use proc_macro::TokenStream;
use proc_macro2::Ident;
use quote::quote;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, GenericParam, Lifetime, LitStr, Type,
    parse_macro_input,
};

/// Limit on the number of fields; the same as in the reader.
const FIELDS_MAX: usize = 32;
/// Limit on the bytes of a name; the same as in the reader.
const NAME_BYTES_MAX: usize = 255;

/// Declares a struct with named fields as a kind of event; see `corebeat_trace::Event`.
#[proc_macro_derive(Event, attributes(event))]
pub fn event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// The options in `#[event(...)]` of a struct.
struct Options {
    name: String,
    timed: bool,
    kept: bool,
}

fn derive(input: &DeriveInput) -> Result<proc_macro2::TokenStream, Error> {
    let fields = named_fields(input)?;
    // All instances of a generic type would share one kind.
    if let Some(parameter) =
        input.generics.params.iter().find(|p| !matches!(p, GenericParam::Lifetime(_)))
    {
        return Err(Error::new(parameter.span(), "an event may only have lifetime parameters"));
    }
    if fields.len() > FIELDS_MAX {
        return Err(Error::new(
            input.ident.span(),
            format!("an event has at most {FIELDS_MAX} fields"),
        ));
    }
    let Options { name, timed, kept } = options(input)?;
    let idents: Vec<_> = fields.iter().filter_map(|f| f.ident.as_ref()).collect();
    let types: Vec<_> = fields.iter().map(|f| &f.ty).collect();
    let names = idents
        .iter()
        .map(|i| name_of(i.unraw().to_string(), i.span()))
        .collect::<Result<Vec<_>, _>>()?;
    let hexes = fields.iter().map(|f| is_hex(f)).collect::<Result<Vec<_>, _>>()?;
    let statics: Vec<_> = types.iter().map(|t| with_static_lifetimes(t)).collect();
    let fields_type = types.iter().rev().fold(
        quote!(()),
        |rest, of| quote!((<#of as ::corebeat_trace::Field>::Plain<'fields>, #rest)),
    );
    let values = idents.iter().rev().fold(
        quote!(()),
        |rest, ident| quote!((::corebeat_trace::Field::plain(&self.#ident), #rest)),
    );
    let ident = &input.ident;
    let (generics, arguments, conditions) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics ::corebeat_trace::Event for #ident #arguments #conditions {
            const TIMED: bool = #timed;

            type Fields<'fields> = #fields_type where Self: 'fields;

            #[inline(always)]
            fn kind() -> &'static ::corebeat_trace::Kind {
                static KIND: ::corebeat_trace::Kind = ::corebeat_trace::Kind::new(
                    #name,
                    #timed,
                    #kept,
                    &[#(::corebeat_trace::FieldKind::new(
                        #names,
                        <<#statics as ::corebeat_trace::Field>::Plain<'static>
                            as ::corebeat_trace::Plain>::TYPE,
                        #hexes,
                    )),*],
                );
                &KIND
            }

            #[inline(always)]
            #[allow(clippy::unused_unit, reason = "there may be no fields")]
            fn fields(&self) -> Self::Fields<'_> {
                #values
            }
        }
    })
}

/// A type with all lifetimes replaced by `'static`, for use in a static.
fn with_static_lifetimes(of: &Type) -> Type {
    struct Static;

    impl VisitMut for Static {
        fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
            lifetime.ident = Ident::new("static", lifetime.span());
        }
    }

    let mut of = of.clone();
    Static.visit_type_mut(&mut of);
    of
}

fn named_fields(input: &DeriveInput) -> Result<Vec<&Field>, Error> {
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => Ok(fields.named.iter().collect()),
            Fields::Unit => Ok(Vec::new()),
            Fields::Unnamed(_) => {
                Err(Error::new(input.ident.span(), "the fields of an event must have names"))
            }
        },
        _ => Err(Error::new(input.ident.span(), "an event must be a struct")),
    }
}

fn options(input: &DeriveInput) -> Result<Options, Error> {
    let ident = &input.ident;
    let mut options = Options {
        name: name_of(ident.unraw().to_string(), ident.span())?,
        timed: true,
        kept: false,
    };
    for attribute in events(&input.attrs) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("untimed") {
                options.timed = false;
                Ok(())
            } else if meta.path.is_ident("kept") {
                options.kept = true;
                Ok(())
            } else if meta.path.is_ident("name") {
                let name: LitStr = meta.value()?.parse()?;
                options.name = name_of(name.value(), name.span())?;
                Ok(())
            } else {
                Err(meta.error(
                    "unknown option: use event(name = \"...\"), event(untimed) or event(kept)",
                ))
            }
        })?;
    }
    if options.kept && options.timed {
        return Err(Error::new(ident.span(), "a kept event has no time stamp: add untimed"));
    }
    Ok(options)
}

fn is_hex(field: &Field) -> Result<bool, Error> {
    let mut hex = false;
    for attribute in events(&field.attrs) {
        attribute.parse_nested_meta(|meta| {
            hex = meta.path.is_ident("hex");
            if hex { Ok(()) } else { Err(meta.error("unknown option: use event(hex)")) }
        })?;
    }
    Ok(hex)
}

fn events(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|a| a.path().is_ident("event"))
}

fn name_of(name: String, span: proc_macro2::Span) -> Result<String, Error> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(name),
        _ => Err(Error::new(span, format!("a name must have 1 to {NAME_BYTES_MAX} bytes"))),
    }
}
