//! `#[derive(Event)]` for `corebeat-trace`, which exports it.
//!
//! Place in the loop: observe; a part of `corebeat-trace`.

use proc_macro::TokenStream;
use proc_macro2::{Group, Ident, TokenTree};
use quote::quote;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, GenericParam, LitStr, parse_macro_input};

/// Fields that a kind may have, as the reader has it.
const FIELDS_MAX: usize = 32;
/// Bytes of a name, as the reader has it.
const NAME_BYTES_MAX: usize = 255;

/// Makes a struct with named fields a kind of event. `corebeat_trace::Event` says how it is used.
#[proc_macro_derive(Event, attributes(event))]
pub fn event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// What `#[event(...)]` says of a struct.
struct Options {
    name: String,
    timed: bool,
    kept: bool,
}

fn derive(input: &DeriveInput) -> Result<proc_macro2::TokenStream, Error> {
    let fields = named_fields(input)?;
    // A generic type would be one kind for all that it stands for.
    if let Some(parameter) = input.generics.params.iter().find(|p| !matches!(p, GenericParam::Lifetime(_))) {
        return Err(Error::new(parameter.span(), "an event has no parameters but lifetimes"));
    }
    if fields.len() > FIELDS_MAX {
        return Err(Error::new(input.ident.span(), format!("an event has at most {FIELDS_MAX} fields")));
    }
    let Options { name, timed, kept } = options(input)?;
    let idents: Vec<_> = fields.iter().filter_map(|f| f.ident.as_ref()).collect();
    let types: Vec<_> = fields.iter().map(|f| &f.ty).collect();
    let names =
        idents.iter().map(|i| name_of(i.unraw().to_string(), i.span())).collect::<Result<Vec<_>, _>>()?;
    let hexes = fields.iter().map(|f| is_hex(f)).collect::<Result<Vec<_>, _>>()?;
    let statics: Vec<_> = types.iter().map(|t| with_static_lifetimes(quote!(#t))).collect();
    let fields_type = types
        .iter()
        .rev()
        .fold(quote!(()), |rest, of| quote!((<#of as ::corebeat_trace::Field>::Plain<'fields>, #rest)));
    let values = idents
        .iter()
        .rev()
        .fold(quote!(()), |rest, ident| quote!((::corebeat_trace::Field::plain(&self.#ident), #rest)));
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
                        <<#statics as ::corebeat_trace::Field>::Plain<'static> as ::corebeat_trace::Plain>::TYPE,
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

/// A type as it is named in a static, which knows no other lifetimes.
fn with_static_lifetimes(of: proc_macro2::TokenStream) -> proc_macro2::TokenStream {
    let mut after_quote = false;
    let tokens = of.into_iter().map(|token| {
        let is_lifetime =
            std::mem::replace(&mut after_quote, matches!(&token, TokenTree::Punct(p) if p.as_char() == '\''));
        match token {
            TokenTree::Group(group) => {
                Group::new(group.delimiter(), with_static_lifetimes(group.stream())).into()
            }
            TokenTree::Ident(ident) if is_lifetime => Ident::new("static", ident.span()).into(),
            token => token,
        }
    });
    tokens.collect()
}

fn named_fields(input: &DeriveInput) -> Result<Vec<&Field>, Error> {
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => Ok(fields.named.iter().collect()),
            Fields::Unit => Ok(Vec::new()),
            Fields::Unnamed(_) => Err(Error::new(input.ident.span(), "fields of an event have names")),
        },
        _ => Err(Error::new(input.ident.span(), "an event is a struct")),
    }
}

fn options(input: &DeriveInput) -> Result<Options, Error> {
    let ident = &input.ident;
    let mut options =
        Options { name: name_of(ident.unraw().to_string(), ident.span())?, timed: true, kept: false };
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
                Err(meta.error("a struct knows event(name = \"...\"), event(untimed) and event(kept)"))
            }
        })?;
    }
    if options.kept && options.timed {
        return Err(Error::new(
            ident.span(),
            "an event that is kept says what holds at all times: make it untimed",
        ));
    }
    Ok(options)
}

fn is_hex(field: &Field) -> Result<bool, Error> {
    let mut hex = false;
    for attribute in events(&field.attrs) {
        attribute.parse_nested_meta(|meta| {
            hex = meta.path.is_ident("hex");
            if hex { Ok(()) } else { Err(meta.error("a field knows event(hex)")) }
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
        _ => Err(Error::new(span, format!("a name has 1 to {NAME_BYTES_MAX} bytes"))),
    }
}
