//! The parser: syntax trees, diagnostics, and robustness against any text.

mod print;

use corebeat_snet::Kind;
use corebeat_snet::ast::*;
use corebeat_snet::diagnostic::{Diagnostic, Severity};
use corebeat_snet::expression::{Binary, Unary};
use corebeat_snet::parse;
use corebeat_snet::syntax::{DIAGNOSTICS_MAX, NESTING_MAX};
use print::{Brackets, PRECEDENCE, Printer};
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Parses a program without errors.
#[track_caller]
fn module(source: &str) -> Module {
    parse(source).unwrap_or_else(|errors| panic!("{source}\n{}", report(source, &errors)))
}

fn report(source: &str, errors: &[Diagnostic]) -> String {
    let line = |error: &Diagnostic| {
        let (line, column) = error.position(source);
        format!("{line}:{column}: {error}\n")
    };
    errors.iter().map(line).collect()
}

/// The program with all brackets, one space between signs, and no comments.
#[track_caller]
fn canonical(source: &str) -> String {
    Printer::new(Brackets::All).module(&module(source)).join(" ")
}

/// The topology after `connect` in the form of [`canonical`].
#[track_caller]
fn connected(topology: &str) -> String {
    let text = canonical(&format!("net n connect {topology};"));
    text.strip_prefix("net n connect ").unwrap().strip_suffix(" ;").unwrap().into()
}

/// The expression of a filter in the form of [`canonical`].
#[track_caller]
fn computed(expression: &str) -> String {
    let text = connected(&format!("[{{}} -> {{<T = {expression}>}}]"));
    text.strip_prefix("[ { } -> { < T = ").unwrap().strip_suffix(" > } ]").unwrap().into()
}

#[track_caller]
fn topology(source: &str) -> Topology {
    match module(source).definitions.pop() {
        Some(Definition::Net(net)) => net.topology,
        other => panic!("{other:?}"),
    }
}

fn slice(source: &str, span: Span) -> &str {
    &source[span.start..span.end]
}

// Syntax trees.

#[test]
fn definition_of_each_kind_reads_back() {
    for (source, expected) in [
        ("box f ((A)->(B));", "box f ( ( A ) -> ( B ) ) ;"),
        (
            "box f ((A,<T>,<#B>) -> (A)|(<T>)|());",
            "box f ( ( A , < T > , < # B > ) -> ( A ) | ( < T > ) | ( ) ) ;",
        ),
        ("box f (() -> );", "box f ( ( ) -> ) ;"),
        ("box init(-> (X));", "box init ( -> ( X ) ) ;"),
        (
            "box f ((A=, <T>=, <#B> =, C) -> (D));",
            "box f ( ( A = , < T > = , < # B > = , C ) -> ( D ) ) ;",
        ),
        ("box f ((A)->(B)) {<<<C| x = y; >>>}", "box f ( ( A ) -> ( B ) ) {<<<C| x = y; >>>}"),
        ("type t = {};", "type t = { } ;"),
        ("type t = {A,<T>,<#B>} | u | {C};", "type t = { A , < T > , < # B > } | u | { C } ;"),
        ("typesig s = {A} -> {B};", "typesig s = { A } -> { B } ;"),
        ("typesig s = r, t | {B} -> u, v;", "typesig s = r , t | { B } -> u , v ;"),
        ("typesig s = -> {B}, {A} ->, -> ;", "typesig s = -> { B } , { A } -> , -> ;"),
        ("typesig s = {A} -> ..., t -> ...;", "typesig s = { A } -> ... , t -> ... ;"),
        ("net n connect a;", "net n connect a ;"),
        ("net n (s) connect a;", "net n ( s ) connect a ;"),
        (
            "net n ({A}|{C} -> {P}, s, {B} -> ...) connect a;",
            "net n ( { A } | { C } -> { P } , s , { B } -> ... ) connect a ;",
        ),
        ("net n {} connect a;", "net n connect a ;"),
        (
            "net n { net m { box f ((A)->(A)); } connect f; type t = {A}; } connect m;",
            "net n { net m { box f ( ( A ) -> ( A ) ) ; } connect f ; type t = { A } ; } connect \
             m ;",
        ),
    ] {
        assert_eq!(canonical(source), expected, "{source}");
    }
}

#[test]
fn topology_of_each_kind_reads_back() {
    for (source, expected) in [
        ("a", "a"),
        ("(((a)))", "a"),
        ("[]", "[ ]"),
        ("[ ]", "[ ]"),
        ("a .. b .. c", "( a .. b .. c )"),
        ("a | b | c", "( a | b | c )"),
        ("a || b || c", "( a || b || c )"),
        ("a * {A}", "( a * { A } )"),
        ("a ** {A}, {B, <T>} if <T>", "( a ** { A } , { B , < T > } if < T > )"),
        ("a ! <T>", "( a ! < T > )"),
        ("a !! <#T>", "( a !! < # T > )"),
        ("a !@ <T>", "( a ! @ < T > )"),
        ("a !!@ <T>", "( a !! @ < T > )"),
        ("a \\ {A, <n>}, {B}", "( a \\ { A , < n > } , { B } )"),
        ("a @ 3", "( a @ 3 )"),
        ("[|{A},{B}|]", "[| { A } , { B } |]"),
        ("[|{A} if <1 < 2>,{B,C},{<d>}|]", "[| { A } if < ( 1 < 2 ) > , { B , C } , { < d > } |]"),
        ("[{A} -> ]", "[ { A } -> ]"),
        ("[{} -> {}]", "[ { } -> { } ]"),
        (
            "[{A,<T>} -> {A}; {B=A,<T>,<S=T+1>}; {<#b>, <#c = 1>}]",
            "[ { A , < T > } -> { A } ; { B = A , < T > , < S = ( T + 1 ) > } ; { < # b > , < # c \
             = 1 > } ]",
        ),
        (
            "[{} -> {<A = 1, #B, C = min(1, 2)>, D}]",
            "[ { } -> { < A = 1 > , < # B > , < C = ( 1 min 2 ) > , D } ]",
        ),
        (
            "[{<T>} -> if <T> then {<T>} else if <!T> then else {}]",
            "[ { < T > } -> if < T > then { < T > } else if < ( ! T ) > then else { } ]",
        ),
        (
            "[{<T>} -> if <T> then {<T>};{} else]",
            "[ { < T > } -> if < T > then { < T > } ; { } else ]",
        ),
    ] {
        assert_eq!(connected(source), expected, "{source}");
    }
}

#[test]
fn expression_of_each_kind_reads_back() {
    for (source, expected) in [
        ("0", "0"),
        ("2147483647", "2147483647"),
        ("0x1F", "31"),
        ("0Xff", "255"),
        ("0x7fffffff", "2147483647"),
        ("030", "24"),
        ("00", "0"),
        ("T", "T"),
        ("#T", "# T"),
        ("-T", "( - T )"),
        ("!T", "( ! T )"),
        ("!!T", "( ! ( ! T ) )"),
        ("!!!T", "( ! ( ! ( ! T ) ) )"),
        ("- - 1", "( - ( - 1 ) )"),
        ("abs T", "( abs T )"),
        ("abs(T)", "( abs T )"),
        ("abs -T", "( abs ( - T ) )"),
        ("min(a, b)", "( a min b )"),
        ("max (a + 1, min(b, c))", "( ( a + 1 ) max ( b min c ) )"),
        ("a min b max c", "( ( a min b ) max c )"),
        ("a ? b : c", "( a ? b : c )"),
        ("a || b", "( a || b )"),
        ("a && b", "( a && b )"),
        ("a == b", "( a == b )"),
        ("a != b", "( a != b )"),
        ("a < b", "( a < b )"),
        ("a <= b", "( a <= b )"),
        ("a > b", "( a > b )"),
        ("a >= b", "( a >= b )"),
        ("a + b", "( a + b )"),
        ("a - b", "( a - b )"),
        ("a * b", "( a * b )"),
        ("a / b", "( a / b )"),
        ("a % b", "( a % b )"),
    ] {
        assert_eq!(computed(source), expected, "{source}");
    }
}

#[test]
fn mixed_combinators_follow_their_precedence() {
    for (source, expected) in [
        ("a | b || c .. d*{A}", "( a | ( b || ( c .. ( d * { A } ) ) ) )"),
        ("a*{A} .. b || c | d", "( ( ( ( a * { A } ) .. b ) || c ) | d )"),
        ("a | b || c | d || e | f", "( a | ( b || c ) | ( d || e ) | f )"),
        ("a || b | c || d", "( ( a || b ) | ( c || d ) )"),
        ("a || (b | c) || d", "( a || ( b | c ) || d )"),
        ("a .. b | c .. d", "( ( a .. b ) | ( c .. d ) )"),
        ("a .. (b | c) .. d", "( a .. ( b | c ) .. d )"),
        ("(a .. b) .. c", "( ( a .. b ) .. c )"),
        ("a .. (b .. c)", "( a .. ( b .. c ) )"),
        ("(a | b) | c", "( ( a | b ) | c )"),
        ("a .. b*{A}", "( a .. ( b * { A } ) )"),
        ("(a .. b)*{A}", "( ( a .. b ) * { A } )"),
        ("a*{A}!<T>@2\\{B}", "( ( ( ( a * { A } ) ! < T > ) @ 2 ) \\ { B } )"),
        ("a*{A},{B}**{C}", "( ( a * { A } , { B } ) ** { C } )"),
        ("a@1 .. b@2", "( ( a @ 1 ) .. ( b @ 2 ) )"),
        ("[]|[]", "( [ ] | [ ] )"),
        ("[|{A},{B}|]|[|{A},{B}|]", "( [| { A } , { B } |] | [| { A } , { B } |] )"),
        ("a|[|{A},{B}|]||[]", "( a | ( [| { A } , { B } |] || [ ] ) )"),
    ] {
        assert_eq!(connected(source), expected, "{source}");
    }
}

#[test]
fn mixed_operators_follow_their_precedence() {
    for (source, expected) in [
        ("a ? b : c ? d : e", "( a ? b : ( c ? d : e ) )"),
        ("a ? b ? c : d : e", "( a ? ( b ? c : d ) : e )"),
        ("(a ? b : c) ? d : e", "( ( a ? b : c ) ? d : e )"),
        ("a || b ? c || d : e || f", "( ( a || b ) ? ( c || d ) : ( e || f ) )"),
        ("a || b && c", "( a || ( b && c ) )"),
        ("a && b || c", "( ( a && b ) || c )"),
        ("a && b == c", "( a && ( b == c ) )"),
        ("a == b < c", "( a == ( b < c ) )"),
        ("a != b >= c", "( a != ( b >= c ) )"),
        ("a < b + c", "( a < ( b + c ) )"),
        ("a + b * c", "( a + ( b * c ) )"),
        ("a * b + c", "( ( a * b ) + c )"),
        ("a * b min c", "( a * ( b min c ) )"),
        ("a max b / c", "( ( a max b ) / c )"),
        ("-a min b", "( ( - a ) min b )"),
        ("a min -b", "( a min ( - b ) )"),
        ("-a * -b", "( ( - a ) * ( - b ) )"),
        ("abs a - b", "( ( abs a ) - b )"),
        ("!a == b", "( ( ! a ) == b )"),
        ("a - b - c", "( ( a - b ) - c )"),
        ("a / b % c * d", "( ( ( a / b ) % c ) * d )"),
        ("a - (b - c)", "( a - ( b - c ) )"),
        ("a < b < c", "( ( a < b ) < c )"),
        ("a || b || c", "( ( a || b ) || c )"),
        ("(((a)))", "a"),
    ] {
        assert_eq!(computed(source), expected, "{source}");
    }
}

#[test]
fn greater_sign_compares_before_an_operand_and_closes_otherwise() {
    for (source, expected) in [
        ("a*{<T>} if <T > 3>", "( a * { < T > } if < ( T > 3 ) > )"),
        ("a*{<T>} if <T>3>", "( a * { < T > } if < ( T > 3 ) > )"),
        ("a*{<T>} if <T > -3>", "( a * { < T > } if < ( T > ( - 3 ) ) > )"),
        ("a*{<T>} if <T > !S>", "( a * { < T > } if < ( T > ( ! S ) ) > )"),
        ("a*{<T>} if <T > #S>", "( a * { < T > } if < ( T > # S ) > )"),
        ("a*{<T>} if <T > (S)>", "( a * { < T > } if < ( T > S ) > )"),
        ("a*{<T>} if <T > abs S>", "( a * { < T > } if < ( T > ( abs S ) ) > )"),
        ("a*{<T>} if <T > min(S, 1)>", "( a * { < T > } if < ( T > ( S min 1 ) ) > )"),
        ("a*{<T>} if <T > 1 > 2>", "( a * { < T > } if < ( ( T > 1 ) > 2 ) > )"),
        ("a*{<T>} if <(T > 1) == 0>", "( a * { < T > } if < ( ( T > 1 ) == 0 ) > )"),
        ("a*{<T>} if <T >= 1>", "( a * { < T > } if < ( T >= 1 ) > )"),
        ("a*{<T>} if <T> ! <S>", "( ( a * { < T > } if < T > ) ! < S > )"),
        ("a*{<T>} if <T> !! <S>", "( ( a * { < T > } if < T > ) !! < S > )"),
        ("a*{<T>} if <T> ! (<S>)", "( ( a * { < T > } if < T > ) ! < S > )"),
        ("a*{<T>} if <T>!@<S>", "( ( a * { < T > } if < T > ) ! @ < S > )"),
        ("a*{<T>} if <T> * {A}", "( ( a * { < T > } if < T > ) * { A } )"),
        ("a*{<T>} if <T> .. b", "( ( a * { < T > } if < T > ) .. b )"),
        ("a*{<T>} if <T>, {A}", "( a * { < T > } if < T > , { A } )"),
        ("[{<T>}->if<T>then{<T>}else]", "[ { < T > } -> if < T > then { < T > } else ]"),
        ("[{<T>}->{<T=T>3>}]", "[ { < T > } -> { < T = ( T > 3 ) > } ]"),
        ("[{<T>}->{<T=T>,A}]", "[ { < T > } -> { < T = T > , A } ]"),
    ] {
        assert_eq!(connected(source), expected, "{source}");
    }
}

#[test]
fn pattern_and_tag_may_have_parentheses() {
    for (older, newer) in [
        ("a * ({A})", "a * {A}"),
        ("a ** ({A}, {B} if <1>)", "a ** {A}, {B} if <1>"),
        ("a \\ ({A})", "a \\ {A}"),
        ("a ! (<T>)", "a ! <T>"),
        ("a !! (<#T>)", "a !! <#T>"),
        ("a !@ (<T>) .. b", "a !@ <T> .. b"),
    ] {
        assert_eq!(connected(older), connected(newer));
    }
}

#[test]
fn word_with_a_reserved_prefix_is_a_name() {
    assert_eq!(
        connected("boxes .. net1 .. iff .. _min .. Box"),
        "( boxes .. net1 .. iff .. _min .. Box )"
    );
    assert_eq!(
        canonical("box metadata ((label) -> (tag, <false>));"),
        "box metadata ( ( label ) -> ( tag , < false > ) ) ;"
    );
}

#[test]
fn comments_and_white_space_between_signs_have_no_effect() {
    let source = "\u{feff}//! first line\r\nnet/**/n//x\n{/* { */ box f((A\t,<  /* > */ T \
                  >)->(B));\n}\u{a0}connect(f)// end";
    assert_eq!(
        canonical(&format!("{source}\n;/**//***/ //")),
        "net n { box f ( ( A , < T > ) -> ( B ) ) ; } connect f ;"
    );
    assert_eq!(
        canonical("net n connect a;\n;; net m connect b;;"),
        "net n connect a ; net m connect b ;"
    );
}

#[test]
fn body_of_a_box_keeps_its_code_unchanged() {
    let source = "box f ((A)->(B)) {\n  <<< C-Language /* | no */ // | no\n | a >>> b; /* }\n \
                  \"|\" ß >> >>>\n } net n connect f;";
    let module = module(source);
    let [Definition::Box(f), Definition::Net(_)] = &module.definitions[..] else {
        panic!("{module:?}")
    };
    let body = f.body.as_ref().unwrap();
    assert_eq!(body.language.text, "C-Language");
    assert_eq!(slice(source, body.language.span), "C-Language");
    assert_eq!(body.code, " a >>> b; /* }\n \"|\" ß >> ");
    assert_eq!(slice(source, body.span), body.code);
    assert!(
        slice(source, f.span).starts_with("box f") && slice(source, f.span).ends_with(">>>\n }")
    );
}

#[test]
fn body_of_a_box_without_spaces_is_complete() {
    let module = module("box f ((A)->(B)){<<<a/b|>>>>}; box g ((A)->(B)){<<<c|>>>}");
    let code = |definition: &Definition| match definition {
        Definition::Box(f) => (f.body.clone().unwrap().language.text, f.body.clone().unwrap().code),
        other => panic!("{other:?}"),
    };
    assert_eq!(code(&module.definitions[0]), ("a/b".into(), ">".into()));
    assert_eq!(code(&module.definitions[1]), ("c".into(), String::new()));
}

#[test]
fn metadata_between_definitions_is_read_as_elements() {
    let source = r#"<?xml version="1.0"?>
        <!-- a comment; net x -->
        <snet:metadata xmlns:snet='snet.org' >
          <snet:box name = "n/f &lt;&#65;&#x42;&amp;&quot;&apos;&gt;" >
            <interface value="C4SNet"/>
            <flags> -O2 <!-- not this -->-g &amp; <![CDATA[<&>]]> </flags>
            <meta:own ö.1-x='&quot;"'></meta:own  >
          </snet:box>
          <boxdefault/><?skip this?>
        </snet:metadata>
        net n { <snet:net name="m">it's</snet:net> box f ((A)->(A)); } connect f;"#;
    let module = module(source);
    let [Definition::Metadata(metadata), Definition::Net(net)] = &module.definitions[..] else {
        panic!("{module:?}")
    };
    let attribute = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let [f, default] = &metadata.elements[..] else { panic!("{metadata:?}") };
    assert_eq!((f.name.as_str(), f.text.as_str()), ("box", ""));
    assert_eq!(f.attributes, [attribute("name", "n/f <AB&\"'>")]);
    let [interface, flags, own] = &f.children[..] else { panic!("{f:?}") };
    assert_eq!(interface.attributes, [attribute("value", "C4SNet")]);
    assert_eq!(flags.text, "-O2 -g & <&>");
    assert_eq!(
        (own.name.as_str(), &own.attributes[..]),
        ("own", &[attribute("ö.1-x", "\"\"")][..])
    );
    assert_eq!(default.name, "boxdefault");
    assert!(slice(source, metadata.span).starts_with("<snet:metadata"));
    assert!(slice(source, metadata.span).ends_with("</snet:metadata>"));

    let [Definition::Metadata(inner), Definition::Box(_)] = &net.definitions[..] else {
        panic!("{net:?}")
    };
    let [m] = &inner.elements[..] else { panic!("{inner:?}") };
    assert_eq!((m.name.as_str(), m.text.as_str()), ("net", "it's"));
}

#[test]
fn program_of_metadata_only_is_a_program() {
    assert_eq!(module("<metadata></metadata>").definitions.len(), 1);
    assert_eq!(module("<metadata/>").definitions.len(), 1);
}

/// Notations of programs for the first implementation of S-Net.
#[test]
fn program_in_the_style_of_the_first_compiler_is_parsed() {
    let source = r#"
//! snet final
/******* counts down, and adds up *******/
<metadata>
  <boxdefault> <interface value="C4SNet" /> </boxdefault>
</metadata>

type work_t = {n,<job>} | {<stop>};
typesig adder = work_t -> {sum}, {sum} -> ...;

net tally (adder, {n} | {m} -> {sum}, {<end>} -> {<end>})
{
    box start(-> (n));
	box less( (n, <job>) -> (n, <job>)
                        |  (sum) );
    box host((n)->(m)) {
        <<< java |
            class Host { int f() { return 3 >>> 1; } }
        >>>
    }
    net one { net step connect [{n} -> {m=n, <job = job % 3>}; {<k=0x10>}]; } connect step!@<job>;
    net both
    connect [|{n},{m} |] ** ({n,m});
}
connect (start|[]) .. (less | (host@2) .. ([] | ([{<T>} -> {}] .. one)))*{sum} if <T==1>, {<end>} if < 010 > 7 >
   .. both\{n, <k>}
   .. [{a,<T>} ->
         if <T == 1> then {a,<T>}
         else if <T == 2> then {a, <T>};{b=a,<T=-T>}
         else {} ];
"#;
    let module = module(source);
    let kinds: Vec<_> = (module.definitions.iter())
        .map(|definition| match definition {
            Definition::Metadata(_) => "metadata",
            Definition::Type { .. } => "type",
            Definition::Signature { .. } => "typesig",
            Definition::Net(net) if net.definitions.len() == 5 => "net of five",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["metadata", "type", "typesig", "net of five"]);
}

// Places.

#[test]
fn topology_span_covers_its_parts() {
    let source = "net n connect ( a .. b )*{A} if <T>  | [|{A},{B}|] .. [] ;";
    let whole = topology(source);
    assert_eq!(slice(source, whole.span), "( a .. b )*{A} if <T>  | [|{A},{B}|] .. []");
    let TopologyKind::Parallel { branches, .. } = whole.kind else { panic!() };
    let [star, serial] = &branches[..] else { panic!() };
    assert_eq!(slice(source, star.span), "( a .. b )*{A} if <T>");
    assert_eq!(slice(source, serial.span), "[|{A},{B}|] .. []");
    let TopologyKind::Star { operand, exits, .. } = &star.kind else { panic!() };
    assert_eq!(slice(source, operand.span), "( a .. b )");
    assert_eq!(slice(source, exits[0].span), "{A} if <T>");
    assert_eq!(slice(source, exits[0].variant.span), "{A}");
    assert_eq!(slice(source, exits[0].guard.as_ref().unwrap().span), "T");
    let TopologyKind::Serial(steps) = &operand.kind else { panic!() };
    assert_eq!(slice(source, steps[0].span), "a");
}

#[test]
fn expression_span_covers_its_operands() {
    let source = "net n connect [{<T>} -> {A, <T = ( -T + 1 ) * min(T, 2) ? #B : 0x3 >}];";
    let TopologyKind::Filter(filter) = topology(source).kind else { panic!() };
    assert_eq!(slice(source, filter.pattern.span), "{<T>}");
    let output = &filter.otherwise[0];
    assert_eq!(slice(source, output.span), "{A, <T = ( -T + 1 ) * min(T, 2) ? #B : 0x3 >}");
    let OutputEntry::Tag { value: Some(value), .. } = &output.entries[1] else { panic!() };
    assert_eq!(slice(source, value.span), "( -T + 1 ) * min(T, 2) ? #B : 0x3");
    let ExprKind::Conditional(condition, binding, number) = &value.kind else { panic!() };
    assert_eq!(slice(source, binding.span), "#B");
    assert_eq!(slice(source, number.span), "0x3");
    let ExprKind::Tag(entry) = &binding.kind else { panic!() };
    assert_eq!((entry.kind, slice(source, entry.name.span)), (Kind::BindingTag, "B"));
    let ExprKind::Binary(Binary::Times, sum, least) = &condition.kind else { panic!() };
    assert_eq!(slice(source, sum.span), "( -T + 1 )");
    assert_eq!(slice(source, least.span), "min(T, 2)");
    let ExprKind::Binary(Binary::Plus, minus, _) = &sum.kind else { panic!() };
    assert_eq!(slice(source, minus.span), "-T");
    assert!(matches!(minus.kind, ExprKind::Unary(Unary::Minus, _)));
}

#[test]
fn definition_span_covers_the_whole_definition() {
    let source =
        " box f ((A)->(B)) ; net n ({A} -> {B} | t, s, -> ...)\n{ type t = {A}; }\nconnect f ; ";
    let module = module(source);
    let [Definition::Box(f), Definition::Net(n)] = &module.definitions[..] else { panic!() };
    assert_eq!(slice(source, f.span), "box f ((A)->(B)) ;");
    assert_eq!(slice(source, n.span), source[f.span.end..].trim());
    let places: Vec<_> = (n.signature.iter().flatten())
        .map(|item| match item {
            SignatureItem::Name(name) => slice(source, name.span),
            SignatureItem::Mapping { span, .. } => slice(source, *span),
        })
        .collect();
    assert_eq!(places, ["{A} -> {B} | t", "s", "-> ..."]);
}

// Errors.

/// Program with `‹` and `›` around the place, message, and a part of the help.
const ERRORS: &[(&str, &str, &str)] = &[
    // Definitions.
    ("‹›", "expected a definition, found the end of the file", "write `net NAME connect"),
    (
        "‹› // nothing\n",
        "expected a definition, found the end of the file",
        "write `net NAME connect",
    ),
    (
        "‹a› .. b;",
        "expected a definition: `box`, `net`, `type`, `typesig` or `<metadata>`, found `a`",
        "",
    ),
    ("net n connect a;\n ‹}›", "unexpected `}`", "remove it"),
    ("‹connect› a;", "unexpected `connect`", "write `net NAME` before it"),
    ("net n connect a‹› net m connect b;", "missing `;`", "end the definition with `;`"),
    ("net n connect a‹› // end", "missing `;`", "end the definition with `;`"),
    ("box f ((A)->(B))‹› box g ((A)->(B));", "missing `;`", "end the definition with `;`"),
    ("type t = {A}‹› net n connect a;", "missing `;`", "end the definition with `;`"),
    ("net n { box f ((A)->(B))‹› } connect f;", "missing `;`", "end the definition with `;`"),
    (
        "net n ‹{› box f ((A)->(B));",
        "the net `n` is not closed",
        "close the net with `} connect ...;`",
    ),
    ("net n { box f ((A)->(B));‹› connect f;", "missing `}` before `connect`", "`}`"),
    ("net ‹;›", "expected the name of the net, found `;`", ""),
    (
        "net ‹connect› a;",
        "expected the name of the net, found `connect`",
        "write `net NAME connect",
    ),
    ("net n‹› a .. b;", "the net `n` has no `connect`", "write `net NAME connect"),
    ("net n‹›;", "the net `n` has no `connect`", "`box`"),
    ("net n ({A} -> {B})‹›;", "the net `n` has no `connect`", "`box`"),
    ("net n { box f ((A)->(B)); }‹› f;", "the net `n` has no `connect`", "write `net NAME connect"),
    ("net n‹›", "the net `n` has no `connect`", "write `net NAME connect"),
    (
        "net ‹if› connect a;",
        "`if` is a reserved word and cannot be a name",
        "use another name, such as `if_`",
    ),
    // Boxes.
    (
        "box f (‹a›, b) -> (c);",
        "each list of labels of a box needs parentheses",
        "write `box NAME ((A",
    ),
    (
        "box f (‹<›T>) -> (c);",
        "each list of labels of a box needs parentheses",
        "write `box NAME ((A",
    ),
    (
        "box f ((a) -> ‹b›);",
        "each list of labels of a box needs parentheses",
        "write `box NAME ((A",
    ),
    ("box f (‹{›a} -> (b));", "the labels of a box need `( )`, not braces", "write `box NAME ((A"),
    ("box f ((a) -> ‹{›b});", "the labels of a box need `( )`, not braces", "write `box NAME ((A"),
    ("box f ‹->› (b);", "expected `(`, found `->`", "write `box NAME ((A"),
    ("box f ((a)‹,› (b));", "expected `->`, found `,`", "write `box NAME ((A"),
    ("box f ((a) -> (b) ‹||› (c));", "outputs of a box are separated by `|`", "write `|`"),
    ("box f ((a) -> (b)‹;›", "expected `)`, found `;`", ""),
    ("box f ((a ‹b›) -> (c));", "expected `,` or `)`, found `b`", ""),
    ("box f ((a, ‹)› -> (c));", "expected a label: `NAME`, `<TAG>` or `<#TAG>`, found `)`", ""),
    ("box f ((‹#›a) -> (c));", "expected a label, found `#`", "`<#NAME>`"),
    ("box f ((<a‹,› b) -> (c));", "expected `>`, found `,`", ""),
    ("box f ((<‹>›) -> (c));", "expected the name of a tag, found `>`", ""),
    ("box f ((‹net›) -> (c));", "`net` is a reserved word and cannot be a name", "`net_`"),
    ("box f ((a) -> (b)) ‹c›;", "expected `;` or `{<<<`, found `c`", ""),
    ("box f ((a) -> (b)) { ‹c› };", "expected `<<<`, found `c`", "{<<< LANGUAGE | code >>>}"),
    (
        "box f ((a) -> (b)) { ‹<<<› c | >>> net n connect a;",
        "the code of the box `f` is not closed",
        "`>>>}`",
    ),
    (
        "box f ((a) -> (b)) {‹<<<› /* c | */ code >>>}",
        "the code of the box `f` has no language",
        "{<<< LANGUAGE",
    ),
    (
        "box f ((a) -> (b)) {‹<<<› | code >>>}",
        "the code of the box `f` has no language",
        "{<<< LANGUAGE",
    ),
    // Types and signatures.
    ("type t ‹{›A};", "expected `=`, found `{`", "write `type NAME = {A} | {B};`"),
    ("type t = ‹;›", "expected a type, found `;`", "write `{A, <T>}`"),
    ("type t = {A} | ‹;›", "expected a type, found `;`", "write `{A, <T>}`"),
    ("type t = {A} ‹||› {B};", "variants of a type are separated by `|`", "write `|`"),
    ("type t = ‹(›A);", "the labels of a record need `{ }`, not parentheses", "write `{A, <T>}`"),
    ("type t = {A} ‹{›B};", "expected `|` or `;`, found `{`", ""),
    ("type t = {<T>‹=›};", "expected `,` or `}`, found `=`", ""),
    ("typesig s = {A}‹;›", "expected `->`, found `;`", "`{A} -> {B}`"),
    ("typesig s ‹->› {A};", "expected `=`, found `->`", "write `typesig"),
    ("net n (‹)› connect a;", "expected a signature, found `)`", "omit `()`"),
    (
        "net n (‹(›A) -> {B}) connect a;",
        "the labels of a record need `{ }`, not parentheses",
        "write `{A, <T>}`",
    ),
    ("net n ({A} -> {B} ‹connect› a;", "expected `)`, found `connect`", ""),
    (
        "net n ({A} ‹=›> {B}) { box f ((A)->(B)); } connect f;",
        "expected `->`, found `=`",
        "`{A} -> {B}`",
    ),
    // Topologies.
    ("net n connect ‹;›", "expected a box or a net, found `;`", "write a name, a filter"),
    ("net n connect a .. ‹;›", "expected a box or a net, found `;`", "write a name, a filter"),
    ("net n connect ‹||› a b;", "expected a box or a net, found `||`", "write a name, a filter"),
    ("net n connect a ‹b›;", "expected `..`, `|`, `*`, `!` or `;`, found `b`", ""),
    ("net n connect a ‹.› b;", "unknown sign `.`", "write `..`"),
    ("net n connect (a .. b‹;›", "expected `)`, found `;`", ""),
    ("net n connect a .. b‹)›;", "expected `..`, `|`, `*`, `!` or `;`, found `)`", ""),
    (
        "net n connect a .. ‹net› m connect b;",
        "expected a box or a net, found `net`",
        "write a name, a filter",
    ),
    ("net n connect a*‹b›;", "expected a pattern, found `b`", "write `{A, <T>}`"),
    ("net n connect a*(‹b›);", "expected a pattern, found `b`", "write `{A, <T>}`"),
    ("net n connect a*(‹)›;", "expected a pattern, found `)`", "write `{A}`"),
    ("net n connect a*{A}, ‹b›;", "expected a pattern, found `b`", "write `{A, <T>}`"),
    ("net n connect a*{A} if ‹T› > 3;", "expected `<`, found `T`", "`if <T > 0>`"),
    ("net n connect a!‹T›;", "expected `<`, found `T`", "`<NAME>`"),
    ("net n connect a!<T‹;›", "expected `>`, found `;`", ""),
    ("net n connect a!(<T>‹;›", "expected `)`, found `;`", ""),
    ("net n connect a@‹b›;", "expected the number of a place, found `b`", "write `@ 1`"),
    ("net n connect a@‹-›1;", "expected the number of a place, found `-`", "write `@ 1`"),
    // Synchrocells.
    ("net n connect [|{A},{B}‹|›;", "a synchrocell ends with `|]`", "write `|]`"),
    ("net n connect [|{A},{B}‹]›;", "a synchrocell ends with `|]`", "write `|]`"),
    ("net n connect [|{A},{B}‹| ]›;", "a synchrocell ends with `|]`", "write `|]`"),
    ("net n connect [|{A},{B}‹| ]›*{A,B};", "a synchrocell ends with `|]`", "write `|]`"),
    (
        "net n connect ‹[ |›{A},{B}|];",
        "a synchrocell begins with `[|`, without a space",
        "remove the space",
    ),
    ("net n connect [|{A} ‹{›B}|];", "expected `|]`, found `{`", ""),
    ("net n connect ‹[|{A}|]›;", "a synchrocell needs at least two patterns", "`[|{A}, {B}|]`"),
    ("net n connect [|‹|]›;", "expected a pattern, found `|]`", "write `{A, <T>}`"),
    // Filters.
    (
        "net n connect [‹->› {A}];",
        "expected a pattern or `]`, found `->`",
        "write `[{A} -> {B = A}]`",
    ),
    ("net n connect [{A} ‹{›B}];", "expected `->`, found `{`", "`[{A} -> {B = A}]`"),
    ("net n connect [{A}‹]›;", "expected `->`, found `]`", "`[{A} -> {B = A}]`"),
    (
        "net n connect [{A} ‹if› <T> -> {B}];",
        "the pattern of a filter cannot have a guard",
        "then {A} else",
    ),
    (
        "net n connect [‹(›A) -> {A}];",
        "the labels of a record need `{ }`, not parentheses",
        "`{A, <T>}`",
    ),
    (
        "net n connect [{A} -> ‹(›A)];",
        "the labels of a record need `{ }`, not parentheses",
        "`{A, <T = 1>}`",
    ),
    ("net n connect [{A} -> {A}‹,› {A}];", "outputs of a filter are separated by `;`", "write `;`"),
    ("net n connect [{A} -> {A}; ‹]›;", "expected `{`, found `]`", "`]` after the last output"),
    ("net n connect [{A} -> {A} ‹b›];", "expected `;` or `]`, found `b`", ""),
    (
        "net n connect [{A} -> {A}; ‹net› m connect b;",
        "expected `{`, found `net`",
        "`]` after the last output",
    ),
    (
        "net n connect [{A} -> if <1> ‹{›A} else {A}];",
        "expected `then`, found `{`",
        "then {A} else",
    ),
    (
        "net n connect [{A} -> if <1> then {A}‹]›;",
        "expected `else`, found `]`",
        "`else` for no output",
    ),
    ("net n connect [{A} -> if ‹(›1) then {A} else];", "expected `<`, found `(`", "`if <T > 0>`"),
    (
        "net n connect [{A} -> {A = ‹3›}];",
        "a field can only be copied from a field",
        "to store a number, use a tag",
    ),
    (
        "net n connect [{A} -> {A = ‹<›T>}];",
        "a field can only be copied from a field",
        "to store a number, use a tag",
    ),
    (
        "net n connect [{A} -> {<T‹>=›3>}];",
        "the value of a tag must be inside its angle brackets",
        "write `<T = ...>`",
    ),
    (
        "net n connect [{A} -> {<#T‹>› = 3>}];",
        "the value of a tag must be inside its angle brackets",
        "write `<#T = ...>`",
    ),
    // Expressions.
    ("net n connect a*{A} if <‹>›;", "expected a number or the name of a tag, found `>`", ""),
    ("net n connect a*{A} if <T + ‹>›;", "expected a number or the name of a tag, found `>`", ""),
    ("net n connect a*{A} if <T == 3‹;›", "expected `>`, found `;`", ""),
    ("net n connect a*{A} if <T ‹=› 3>;", "`=` is not a comparison", "write `==`"),
    ("net n connect a*{A} if <T ‹&› 3>;", "unknown sign `&`", "write `&&`"),
    (
        "net n connect a*{A} if <‹<›T> > 3>;",
        "expected a number or the name of a tag, found `<`",
        "without brackets",
    ),
    ("net n connect a*{A} if <T ? 1‹>›;", "expected `:`, found `>`", "write `a ? b : c`"),
    ("net n connect a*{A} if <min ‹T›>;", "expected `(`, found `T`", "write `min(a, b)`"),
    ("net n connect a*{A} if <max(T‹)›>;", "expected `,`, found `)`", "write `min(a, b)`"),
    ("net n connect a*{A} if <max(T, 1‹,› 2)>;", "expected `)`, found `,`", ""),
    (
        "net n connect a*{A} if <T == ‹if›>;",
        "expected a number or the name of a tag, found `if`",
        "",
    ),
    // Tokens.
    ("net n connect a; ‹/*› net m", "unclosed comment", "close it with `*/`"),
    (
        "net n connect a@‹2147483648›;",
        "the number `2147483648` is too large",
        "use at most 2147483647",
    ),
    (
        "net n connect a@‹0x80000000›;",
        "the number `0x80000000` is too large",
        "use at most 2147483647",
    ),
    (
        "net n connect a@‹99999999999999999999999999999999999999999999999999›;",
        "the number `9999999999999999999999999999999999999999...` is too large",
        "use at most",
    ),
    ("net n connect a@‹089›;", "invalid number `089`", "octal"),
    ("net n connect a@‹0x›;", "invalid number `0x`", "after `0x`"),
    ("net n connect a@‹0xg›;", "invalid number `0xg`", "after `0x`"),
    ("net ‹1n› connect a;", "invalid number `1n`", "a name cannot begin with a digit"),
    (
        "net ‹größe› connect a;",
        "the name contains characters that are not allowed in names",
        "letters a to z",
    ),
    ("net n connect a ‹$$$› .. b;", "unknown sign `$$$`", "remove it"),
    ("net n connect ‹\"›a;", "unknown sign `\"`", "remove it"),
    ("net n connect a ‹→› .. b;", "unknown sign `→`", "remove it"),
    ("net n connect ‹\u{1}›a;", "unknown sign `\u{fffd}`", "remove it"),
    // Metadata.
    (
        "<metadata><box>‹</metadata>› net n connect a;",
        "the end tag `</metadata>` does not close the element `<box>`",
        "write `</box>` first",
    ),
    (
        "‹<metadata>› net n connect a;",
        "the element `<metadata>` is not closed",
        "write `</metadata>`",
    ),
    ("‹</metadata>› net n connect a;", "the end tag `</metadata>` has no start tag", "remove it"),
    (
        "<metadata><box name=‹f›/></metadata>",
        "expected a value in quotes, found `f`",
        "metadata is XML",
    ),
    ("<metadata><box name‹/›></metadata>", "expected `=`, found `/`", "metadata is XML"),
    (
        "<metadata>‹<›box name=\"f/></metadata>",
        "unclosed attribute value in metadata",
        "close the attribute value with `\"`",
    ),
    ("<metadata><box a='1' ‹a›='2'/></metadata>", "the attribute `a` occurs twice", "remove one"),
    (
        "<metadata><box ‹\"›f\"/></metadata>",
        "expected an attribute, `>` or `/>`, found `\"`",
        "metadata is XML",
    ),
    ("<metadata>a ‹&› b</metadata>", "invalid reference in metadata", "write `&amp;` for `&`"),
    ("<metadata>‹&›nbsp;</metadata>", "invalid reference in metadata", "write `&amp;` for `&`"),
    ("<metadata>‹&›#xD800;</metadata>", "invalid reference in metadata", "write `&amp;` for `&`"),
    (
        "<metadata><‹1›/></metadata>",
        "expected the name of an element, `</`, `<!--` or `<?`, found `1`",
        "metadata is XML",
    ),
    (
        "<metadata></‹\n›metadata>",
        "expected the name of the element, found the end of the line",
        "metadata is XML",
    ),
    ("‹<›metadata ", "unclosed tag in metadata", "close the tag with `>`"),
    ("‹<!--› net n connect a;", "unclosed comment in metadata", "close the comment with `-->`"),
    ("‹<!-›ß", "incomplete beginning of a comment in metadata", "begin the comment with `<!--`"),
    (
        "‹<![›aßßß",
        "incomplete beginning of a CDATA section in metadata",
        "begin the CDATA section with `<![CDATA[`",
    ),
    (
        "‹<?›xml net n connect a;",
        "unclosed instruction in metadata",
        "close the instruction with `?>`",
    ),
    (
        "<metadata>‹<![CDATA[›</metadata>",
        "unclosed CDATA section in metadata",
        "close the CDATA section with `]]>`",
    ),
    (
        "‹<› 3",
        "expected a definition: `box`, `net`, `type`, `typesig` or `<metadata>`, found `<`",
        "",
    ),
];

#[test]
fn error_of_each_kind_has_place_and_correction() {
    let mut wrong = String::new();
    for (marked, message, help) in ERRORS {
        let start = marked.find('‹').unwrap();
        let end = marked.find('›').unwrap() - '‹'.len_utf8();
        let source = marked.replace(['‹', '›'], "");
        let errors = parse(&source).err().unwrap_or_default();
        let is_expected = |error: &Diagnostic| {
            error.severity == Severity::Error
                && error.message == *message
                && error.labels[0].0 == Span { start, end }
                && error.help.as_deref().unwrap_or("").contains(help)
        };
        if errors.len() != 1 || !is_expected(&errors[0]) {
            let place = errors.first().map(|error| error.labels[0].0);
            wrong.push_str(&format!(
                "{marked}\n{start}..{end} {place:?} {}",
                report(&source, &errors)
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn errors_in_several_definitions_are_reported_together() {
    let source = "
type t = ;
box f (a -> b);
net outer ({A} = {B}) {
    box g ((A) -> (B)
    box h ((A) -> {B});
    net inner connect g .. ;
    net other connect [{A} -> {A};{B] .. h;
    <metadata><box name='h></metadata>
    net all connect g h; net last connect g
}
connect inner . other;
net ? connect $ a;
";
    let expected = "\
2:10: expected a type, found `;`; write `{A, <T>}`, or the name of a `type`
3:8: each list of labels of a box needs parentheses; write `box NAME ((A, <T>) -> (B) | (C));`
4:16: expected `->`, found `=`; a signature maps an input type to an output type: `{A} -> {B}`
6:5: expected `)`, found `box`
6:19: the labels of a box need `( )`, not braces; write `box NAME ((A, <T>) -> (B) | (C));`
7:28: expected a box or a net, found `;`; write a name, a filter `[{A} -> {B}]`, a synchrocell `[|{A}, {B}|]`, or `(...)`
8:37: expected `,` or `}`, found `]`
9:15: unclosed attribute value in metadata; close the attribute value with `'`
10:23: expected `..`, `|`, `*`, `!` or `;`, found `h`
10:44: missing `;`; end the definition with `;`
12:15: unknown sign `.`; write `..`
13:5: expected the name of the net, found `?`
";
    assert_eq!(report(source, &parse(source).unwrap_err()), expected);
}

#[test]
fn number_of_reported_errors_is_bounded() {
    for wrong in ["type = ;", "net n connect $;", "<a><b></a>", "$ a ", ")", "box ("] {
        let errors = parse(&wrong.repeat(10_000)).unwrap_err();
        assert!((1..=DIAGNOSTICS_MAX).contains(&errors.len()), "{wrong}: {}", errors.len());
    }
    assert_eq!(parse(&"type = ;".repeat(10_000)).unwrap_err().len(), DIAGNOSTICS_MAX);
}

#[test]
fn error_after_an_opening_sign_shows_that_sign() {
    let source = "net n connect a .. (b | c;";
    let errors = parse(source).unwrap_err();
    assert_eq!(errors[0].labels[1].0, Span { start: 19, end: 20 });
    assert_eq!(errors[0].labels[1].1, "unclosed `(`");
}

// Bounds.

/// Nested constructs: name, and a text with `n` levels.
type Nest = fn(usize) -> String;

const NESTS: [(&str, Nest); 15] = [
    ("brackets", |n| format!("net n connect {}a{};", "(".repeat(n), ")".repeat(n))),
    ("brackets not closed", |n| format!("net n connect {}", "(".repeat(n))),
    ("topologies", |n| format!("net n connect {}a{};", "(a .. ".repeat(n), ")".repeat(n))),
    ("stars", |n| format!("net n connect a{};", "*{A}".repeat(n))),
    ("places", |n| format!("net n connect a{};", "@1".repeat(n))),
    ("nets", |n| format!("{}{}", "net n {".repeat(n), "} connect a;".repeat(n))),
    ("nets not closed", |n| "net n {".repeat(n)),
    ("elements", |n| format!("<metadata>{}{}</metadata>", "<a>".repeat(n), "</a>".repeat(n))),
    ("elements not closed", |n| "<a>".repeat(n)),
    ("brackets in expressions", |n| {
        format!("net n connect a*{{A}} if <{}1{}>;", "(".repeat(n), ")".repeat(n))
    }),
    ("sums", |n| format!("net n connect a*{{A}} if <1{}>;", " + 1".repeat(n))),
    ("signs", |n| format!("net n connect a*{{A}} if <{}1>;", "-!".repeat(n))),
    ("conditions", |n| format!("net n connect a*{{A}} if <1{}>;", " ? 1 : 1".repeat(n))),
    ("conditions in conditions", |n| {
        format!("net n connect a*{{A}} if <1{}{}>;", " ? 1".repeat(n), " : 1".repeat(n))
    }),
    ("calls", |n| format!("net n connect a*{{A}} if <{}1{}>;", "min(1, ".repeat(n), ")".repeat(n))),
];

/// Runs a function on a small stack.
fn on_a_small_stack(run: impl FnOnce() + Send + 'static) {
    const STACK_BYTES: usize = 256 << 10;
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).unwrap().join().unwrap();
}

#[test]
fn nesting_without_end_is_an_error_without_overflow() {
    on_a_small_stack(|| {
        for (what, nest) in NESTS {
            for n in [NESTING_MAX + 1, 100_000] {
                let errors = parse(&nest(n)).expect_err(what);
                assert_eq!(errors.len(), 1, "{what}: {errors:?}");
                assert!(
                    errors[0].message.contains("nested too deeply") || what.contains("not closed"),
                    "{what}: {}",
                    errors[0]
                );
            }
        }
    });
}

#[test]
fn nesting_up_to_the_bound_works_on_a_small_stack() {
    on_a_small_stack(|| {
        for (what, nest) in NESTS.iter().filter(|(what, _)| !what.contains("not closed")) {
            // Two signs for each level, or the innermost operand is a level, too.
            let n = if *what == "signs" { NESTING_MAX / 2 - 1 } else { NESTING_MAX - 1 };
            assert!(parse(&nest(n)).is_ok(), "{what}");
        }
        let n = NESTING_MAX - 1;
        let condition = format!("{}1{}", "(1 + ".repeat(n / 2), ")".repeat(n / 2));
        let topology =
            format!("{}a*{{A}} if <{condition}>{}", "(a | ".repeat(n - 1), ")".repeat(n - 1));
        let source =
            format!("{}{}", "net n {".repeat(n), format!("}} connect {topology};").repeat(n));
        drop(parse(&source).unwrap());
    });
}

#[test]
fn list_of_any_length_is_one_level() {
    const LENGTH: usize = 10_000;
    const LONG: usize = 10 * LENGTH;
    let names = |between: &str| vec!["abc"; LENGTH].join(between);
    on_a_small_stack(move || {
        for source in [
            format!("net n connect {};", ["abc"; LONG].join(" .. ")),
            format!("net n connect {};", names("|")),
            format!("net n connect {};", names("||")),
            format!("net n connect a*{};", vec!["{A} if <T>"; LENGTH].join(",")),
            format!("net n connect [|{}|];", vec!["{A}"; LENGTH].join(",")),
            format!("net n connect [{{A}} -> {}];", vec!["{A}"; LENGTH].join(";")),
            format!("net n connect [{{A}} -> {}];", "if <T > 1> then {A} else ".repeat(LENGTH)),
            format!("type t = {{{}}};", names(",")),
            format!("type t = {};", names("|")),
            format!("typesig t = {};", names(",")),
            format!("box f (({}) -> ({}));", names(","), names(",")),
            "net n connect a;".repeat(LONG),
            format!("net n {{ {} }} connect a;", "box f ((A)->(B));".repeat(LENGTH)),
            format!("<metadata>{}</metadata>", "<a b='c'>&amp;</a>".repeat(LENGTH)),
            "<metadata/>".repeat(LENGTH),
            format!("{} net n connect a;", "/* */ // \n".repeat(LENGTH)),
            format!("box f ((A)->(B)) {{<<<c|{}>>>}}", ">>> ".repeat(LENGTH)),
        ] {
            module(&source);
        }
    });
}

// Random texts.

fn name() -> impl Strategy<Value = Name> {
    select(&["a", "b", "C", "x_1", "boxed", "_", "T", "metadata"][..])
        .prop_map(|text| Name { text: text.into(), span: Span::default() })
}

fn tag_entry() -> impl Strategy<Value = Entry> {
    (select(&[Kind::Tag, Kind::BindingTag][..]), name())
        .prop_map(|(kind, name)| Entry { kind, name })
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![tag_entry(), name().prop_map(|name| Entry { kind: Kind::Field, name })]
}

fn variant() -> impl Strategy<Value = Variant> {
    prop::collection::vec(entry(), 0..4)
        .prop_map(|entries| Variant { entries, span: Span::default() })
}

fn types(least: usize) -> impl Strategy<Value = TypeExpr> {
    let item = prop_oneof![name().prop_map(TypeItem::Name), variant().prop_map(TypeItem::Variant)];
    prop::collection::vec(item, least..4)
}

fn signature() -> impl Strategy<Value = Vec<SignatureItem>> {
    let output =
        prop_oneof![3 => types(0).prop_map(OutputType::Type), 1 => Just(OutputType::Infer)];
    let mapping = (types(0), output).prop_map(|(input, output)| SignatureItem::Mapping {
        input,
        output,
        span: Span::default(),
    });
    prop::collection::vec(prop_oneof![name().prop_map(SignatureItem::Name), mapping], 1..4)
}

fn expression() -> impl Strategy<Value = Expr> {
    const UNARY: &[Unary] = &[Unary::Minus, Unary::Not, Unary::Abs];
    let expr = |kind| Expr { kind, span: Span::default() };
    let leaf =
        prop_oneof![(0..=i32::MAX).prop_map(ExprKind::Number), tag_entry().prop_map(ExprKind::Tag)];
    leaf.prop_map(expr).prop_recursive(5, 24, 3, move |inner| {
        let inner = inner.prop_map(Box::new).boxed();
        prop_oneof![
            1 => (select(UNARY), inner.clone()).prop_map(|(o, a)| ExprKind::Unary(o, a)),
            4 => (select(PRECEDENCE.concat()), inner.clone(), inner.clone()).prop_map(|(o, a, b)| ExprKind::Binary(o, a, b)),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| ExprKind::Conditional(a, b, c)),
        ]
        .prop_map(expr)
    })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    (variant(), prop::option::of(expression())).prop_map(|(variant, guard)| Pattern {
        variant,
        guard,
        span: Span::default(),
    })
}

fn patterns(least: usize) -> impl Strategy<Value = Vec<Pattern>> {
    prop::collection::vec(pattern(), least..4)
}

fn action() -> impl Strategy<Value = Action> {
    let entry = prop_oneof![
        (name(), prop::option::of(name()))
            .prop_map(|(name, from)| OutputEntry::Field { name, from }),
        (tag_entry(), prop::option::of(expression()))
            .prop_map(|(entry, value)| OutputEntry::Tag { entry, value }),
    ];
    let output = prop::collection::vec(entry, 0..4)
        .prop_map(|entries| Output { entries, span: Span::default() });
    prop::collection::vec(output, 0..3)
}

fn topologies() -> impl Strategy<Value = Topology> {
    let topology = |kind| Topology { kind, span: Span::default() };
    let filter = (variant(), prop::collection::vec((expression(), action()), 0..3), action())
        .prop_map(|(pattern, cases, otherwise)| {
            TopologyKind::Filter(Filter { pattern, cases, otherwise })
        });
    let leaf = prop_oneof![
        4 => name().prop_map(TopologyKind::Name),
        1 => Just(TopologyKind::Identity),
        1 => patterns(2).prop_map(TopologyKind::Sync),
        1 => filter,
    ];
    leaf.prop_map(topology).prop_recursive(5, 24, 4, move |inner| {
        let list = prop::collection::vec(inner.clone(), 2..4).boxed();
        let inner = inner.prop_map(Box::new).boxed();
        prop_oneof![
            2 => list.clone().prop_map(TopologyKind::Serial),
            3 => (any::<bool>(), list)
                .prop_map(|(deterministic, branches)| TopologyKind::Parallel { deterministic, branches }),
            2 => (any::<bool>(), inner.clone(), patterns(1))
                .prop_map(|(deterministic, operand, exits)| TopologyKind::Star { deterministic, operand, exits }),
            2 => (any::<bool>(), any::<bool>(), inner.clone(), tag_entry())
                .prop_map(|(deterministic, placed, operand, tag)| TopologyKind::Split { deterministic, placed, operand, tag }),
            1 => (inner.clone(), patterns(1))
                .prop_map(|(operand, patterns)| TopologyKind::Feedback { operand, patterns }),
            1 => (inner, 0..=i32::MAX as u32).prop_map(|(operand, place)| TopologyKind::Place { operand, place }),
        ]
        .prop_map(topology)
    })
}

fn element() -> impl Strategy<Value = Element> {
    let text = select(&["", "x", "a b", "<&>\"'", "ß = 1"][..]).prop_map(str::to_owned).boxed();
    let attributes = prop::collection::btree_map(
        select(&["name", "value", "xmlns:snet"][..]),
        text.clone(),
        0..3,
    )
    .prop_map(|map| map.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
    let plain = (select(&["box", "net", "default", "interface"][..]), attributes, text)
        .prop_map(|(name, attributes, text)| Element {
            name: name.into(),
            attributes,
            text,
            children: Vec::new(),
        })
        .boxed();
    plain.clone().prop_recursive(3, 8, 3, move |inner| {
        (plain.clone(), prop::collection::vec(inner, 0..3))
            .prop_map(|(element, children)| Element { children, ..element })
    })
}

fn box_definition() -> impl Strategy<Value = Definition> {
    let input = (entry(), any::<bool>()).prop_map(|(entry, passes)| BoxInput { entry, passes });
    let body = (name(), select(&["", " int i = 1 >> 2; /* | */ ", "}\n;"][..]))
        .prop_map(|(language, code)| Body { language, code: code.into(), span: Span::default() });
    (
        name(),
        prop::option::of(prop::collection::vec(input, 0..4)),
        prop::collection::vec(prop::collection::vec(entry(), 0..4), 0..3),
        prop::option::weighted(0.2, body),
    )
        .prop_map(|(name, input, outputs, body)| {
            Definition::Box(BoxDefinition { name, input, outputs, body, span: Span::default() })
        })
}

fn definition() -> impl Strategy<Value = Definition> {
    let leaf = prop_oneof![
        box_definition(),
        (name(), types(1)).prop_map(|(name, value)| Definition::Type { name, value }),
        (name(), signature()).prop_map(|(name, value)| Definition::Signature { name, value }),
        prop::collection::vec(element(), 0..3).prop_map(|elements| Definition::Metadata(
            Metadata { elements, span: Span::default() }
        )),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let inside = prop::collection::vec(inner, 0..4);
        (name(), prop::option::of(signature()), inside, topologies()).prop_map(
            |(name, signature, definitions, topology)| {
                let span = Span::default();
                Definition::Net(NetDefinition { name, signature, definitions, topology, span })
            },
        )
    })
}

fn modules() -> impl Strategy<Value = Module> {
    prop::collection::vec(definition(), 1..4).prop_map(|definitions| Module { definitions })
}

/// Debug text of a program without places.
fn without_places(module: &Module) -> String {
    let shown = format!("{module:?}");
    let mut pieces = shown.split("Span { start: ");
    let first = pieces.next().unwrap().to_owned();
    pieces.fold(first, |all, piece| all + piece.split_once(" }").unwrap().1)
}

/// Joins words and signs with random white space, which may be empty between words and signs that
/// do not merge.
fn spaced(words: &[String], blanks: &[Index]) -> String {
    const BLANKS: [&str; 6] = ["", "", " ", "\n\t", " /* ; */", " // }\r\n"];
    let stands_alone = |word: &str| ["(", ")", "{", "}", ",", ";"].contains(&word);
    let mut text = String::new();
    for (i, word) in words.iter().enumerate() {
        let blank = BLANKS[blanks[i % blanks.len()].index(BLANKS.len())];
        let may_touch = i == 0 || stands_alone(word) || stands_alone(&words[i - 1]);
        text.push_str(if may_touch || !blank.is_empty() { blank } else { " " });
        text.push_str(word);
    }
    text
}

/// Checks the diagnostics of any text.
fn check_diagnostics(source: &str) -> Result<(), TestCaseError> {
    let Err(errors) = parse(source) else { return Ok(()) };
    prop_assert!((1..=DIAGNOSTICS_MAX).contains(&errors.len()));
    for error in &errors {
        prop_assert!(!error.labels.is_empty());
        prop_assert!(!error.to_string().contains(char::is_control), "{error}");
        for (span, _) in &error.labels {
            prop_assert!(span.start <= span.end, "{error}: {span:?}");
            prop_assert!(source.get(span.start..span.end).is_some(), "{error}: {span:?}");
        }
    }
    Ok(())
}

/// Configuration for cheap cases, with more cases.
fn many() -> ProptestConfig {
    let cases = ProptestConfig::default().cases.saturating_mul(2);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn printed_program_parses_to_the_same_tree(
        written in modules(),
        brackets in select(&[Brackets::All, Brackets::Few][..]),
        blanks in prop::collection::vec(any::<Index>(), 1..50),
    ) {
        let source = spaced(&Printer::new(brackets).module(&written), &blanks);
        let read = match parse(&source) {
            Ok(read) => read,
            Err(errors) => return Err(TestCaseError::fail(format!("{source}\n{}", report(&source, &errors)))),
        };
        prop_assert_eq!(without_places(&read), without_places(&written), "{}", source);

        // The places of names contain the names.
        let shown = format!("{read:?}");
        for piece in shown.split("Name { text: \"").skip(1) {
            let (text, rest) = piece.split_once("\", span: Span { start: ").unwrap();
            let (start, rest) = rest.split_once(", end: ").unwrap();
            let (end, _) = rest.split_once(' ').unwrap();
            prop_assert_eq!(&source[start.parse().unwrap()..end.parse().unwrap()], text);
        }
    }
}

proptest! {
    #![proptest_config(many())]

    #[test]
    fn mutated_program_parses_or_has_diagnostics(
        written in modules(),
        edits in prop::collection::vec((0..4, any::<Index>(), any::<Index>(), any::<Index>()), 1..6),
    ) {
        const OTHER: [&str; 40] = [
            "(", ")", "{", "}", "[", "]", "[|", "|]", "<", ">", ";", ",", "->", "..", "|", "||", "*", "!", "@", "\\",
            "if", "then", "else", "net", "box", "connect", "type", "=", "==", ">=", "?", ":", "min", "#", "$", "ß", "0x",
            "/*", "{<<<", "<a>",
        ];
        let mut words = Printer::new(Brackets::Few).module(&written);
        for (what, at, from, other) in edits {
            let (at, from) = (at.index(words.len()), from.index(words.len()));
            match what {
                0 if words.len() > 1 => drop(words.remove(at)),
                1 => words[at] = OTHER[other.index(OTHER.len())].into(),
                2 => words.insert(at, OTHER[other.index(OTHER.len())].into()),
                _ => words.swap(at, from),
            }
        }
        check_diagnostics(&words.join(" "))?;
        check_diagnostics(&words.concat())?;
    }

    #[test]
    fn truncated_program_parses_or_has_diagnostics(written in modules(), at in any::<Index>(), to in any::<Index>()) {
        let text: Vec<char> = Printer::new(Brackets::Few).module(&written).join(" ").chars().collect();
        let (at, to) = (at.index(text.len()), to.index(text.len()));
        check_diagnostics(&text[..at].iter().collect::<String>())?;
        check_diagnostics(&text[at..].iter().collect::<String>())?;
        check_diagnostics(&text[at.min(to)..at.max(to)].iter().collect::<String>())?;
    }

    #[test]
    fn any_text_parses_or_has_diagnostics(source in "\\PC*", signs in "(net|box|connect|<!-|<!\\[| \
        |[a-c{}()\\[\\]<>|;,.*!@=#?:&\\n$ß/'\"-]){0,80}") {
        check_diagnostics(&source)?;
        check_diagnostics(&signs)?;
        check_diagnostics(&format!("<metadata>{signs}</metadata> {source}"))?;
        check_diagnostics(&format!("net n connect [{{A}} -> {{<T = {signs}>}}]; {source}"))?;
    }
}
