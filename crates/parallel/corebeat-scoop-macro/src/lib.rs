//! `#[derive(Trace)]` for `corebeat-scoop`, which re-exports it.
//!
//! Place in the loop: parallel; a part of `corebeat-scoop`.

use proc_macro::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, parse_macro_input, parse_quote};

/// Implements `corebeat_scoop::Trace` for a struct or an enum. See there.
#[proc_macro_derive(Trace)]
pub fn trace(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Returns a pattern that binds the fields of a variant, and statements that trace them.
fn fields(fields: &Fields) -> (proc_macro2::TokenStream, proc_macro2::TokenStream) {
    let names: Vec<_> = (0..fields.len()).map(|n| format_ident!("field_{n}")).collect();
    let members = fields.members();
    let pattern = quote!({ #(#members: #names),* });
    (pattern, quote!(#(::corebeat_scoop::Trace::trace(#names, tracer);)*))
}

fn derive(mut input: DeriveInput) -> Result<proc_macro2::TokenStream, Error> {
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::corebeat_scoop::Trace));
    }
    let arms = match &input.data {
        Data::Struct(data) => {
            let (pattern, body) = fields(&data.fields);
            quote!(Self #pattern => { #body })
        }
        Data::Enum(data) if data.variants.is_empty() => quote!(_ => {}),
        Data::Enum(data) => {
            let arms = data.variants.iter().map(|variant| {
                let name = &variant.ident;
                let (pattern, body) = fields(&variant.fields);
                quote!(Self::#name #pattern => { #body })
            });
            quote!(#(#arms)*)
        }
        Data::Union(data) => {
            return Err(Error::new(
                data.union_token.span,
                "`Trace` cannot be derived for a union: the active field is unknown",
            ));
        }
    };
    let ident = &input.ident;
    let (generics, arguments, conditions) = input.generics.split_for_impl();
    Ok(quote! {
        // SAFETY: every field is traced, so the type of every field implements the contract.
        unsafe impl #generics ::corebeat_scoop::Trace for #ident #arguments #conditions {
            #[inline]
            #[allow(unused_variables, reason = "the type may have no fields")]
            fn trace(&self, tracer: &mut ::corebeat_scoop::Tracer) {
                match self {
                    #arms
                }
            }
        }
    })
}
