//! Reader and writer of records: accepted and refused text, error messages, and round trips.

use std::io::{self, Read};

use corebeat_snet::Error;
use corebeat_snet::format::{Format, RECORD_LABELS_MAX, Reader, Writer};
use corebeat_snet::{Array, Element, Kind, Label, Record, Scalar, Value};
use proptest::prelude::*;

const HEAD: &str = r#"<record type="data" mode="textual" interface="C4SNet">"#;

fn field(name: &str) -> Label {
    Label::new(Kind::Field, name).unwrap()
}

fn tag(name: &str) -> Label {
    Label::new(Kind::Tag, name).unwrap()
}

fn btag(name: &str) -> Label {
    Label::new(Kind::BindingTag, name).unwrap()
}

fn record(pairs: impl IntoIterator<Item = (Label, Value)>) -> Record {
    Record::from_pairs(pairs).unwrap()
}

fn array(element: Element, bytes: &[u8]) -> Value {
    Value::Array(Array::from_bytes(element, bytes).into())
}

fn ints(all: &[i32]) -> Value {
    array(Element::Int, &all.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<_>>())
}

fn doubles(all: &[f64]) -> Value {
    array(Element::Double, &all.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<_>>())
}

/// Cases of a table: lines of text, each with its message in the indented lines after it.
fn cases(table: &str) -> Vec<(&str, String)> {
    let mut cases: Vec<(&str, String)> = Vec::new();
    for line in table.trim().lines() {
        match (line.strip_prefix("    "), cases.last_mut()) {
            (Some(message), Some((_, whole))) if whole.is_empty() => *whole += message,
            (Some(message), Some((_, whole))) => *whole += &format!(" {message}"),
            _ => cases.push((line, String::new())),
        }
    }
    cases
}

/// Source that returns a few bytes per read.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.1.min(buffer.len()).min(self.0.len());
        buffer[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        Ok(n)
    }
}

/// Reads each record or error. The results must be the same for the whole text and for small
/// pieces, except for the quoted text after `found`, which depends on the buffered text.
fn read(format: Format, text: impl AsRef<[u8]>) -> Vec<Result<Record, String>> {
    let text = text.as_ref();
    let all =
        |results: &mut dyn Iterator<Item = Result<Record, Error>>| -> Vec<Result<Record, String>> {
            results.map(|result| result.map_err(|e| e.to_string())).collect()
        };
    let whole = all(&mut Reader::new(text, format));
    for size in [1, 7] {
        let short = |results: &[Result<Record, String>]| -> Vec<_> {
            results
                .iter()
                .map(|r| r.clone().map_err(|e| e.split("found").next().unwrap().to_string()))
                .collect()
        };
        let pieces = all(&mut Reader::new(Pieces(text, size), format));
        assert_eq!(short(&pieces), short(&whole), "in pieces of {size}");
    }
    whole
}

fn xml(text: impl AsRef<[u8]>) -> Vec<Result<Record, String>> {
    read(Format::Xml, text)
}

fn json(text: impl AsRef<[u8]>) -> Vec<Result<Record, String>> {
    read(Format::Json, text)
}

fn write<'a>(format: Format, records: impl IntoIterator<Item = &'a Record>) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), format);
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap()
}

fn sample() -> Record {
    record([(field("A"), Value::from(0)), (tag("T"), Value::Tag(1)), (btag("B"), Value::Tag(2))])
}

#[test]
fn xml_notations_of_one_record_are_equal() {
    let one =
        r#"<field label="A">(int)0</field><tag label="T">1</tag><btag label="B">2</btag></record>"#;
    let end = r#"<record type="terminate"/>"#;
    for text in [
        format!("{HEAD}{one}{end}"),
        format!("{HEAD}{one}"),
        format!("{HEAD}{one}<record type='terminate'></record>"),
        format!(
            "{HEAD}{one}<record type=\"terminate\" />and what follows is not read <record \
             type=\"sync\">"
        ),
        format!(
            "\u{feff}<?xml version=\"1.0\" encoding='UTF-8'?>\r\n{HEAD}{one}<?xml version=\"1.0\" \
             ?>\r\n{end}"
        ),
        format!(
            "<record xmlns=\"snet-home.org\" type=\"data\" mode=\"textual\" >\n{}\n{end}\n",
            one.replace("><", ">\n<")
        ),
        format!(
            "<!-- </record> --><record\n interface = 'C4SNet' mode='textual'\ttype='data' >{one}"
        ),
        format!("<record type=\"data\">{one}"),
        format!(
            "{HEAD} <btag\nlabel='B'\t> +2 </btag ><!----><tag x='y' label=\"T\">\n1\n</tag>
            <field interface=\"C4SNet\" label=\"A\"> (int) -0 </field> </record >"
        ),
        format!("{HEAD}{one}").replace('\n', "\r\n"),
    ] {
        assert_eq!(xml(&text), [Ok(sample())], "{text}");
    }
}

#[test]
fn xml_value_of_each_type_is_read() {
    let chars = |text: &[u8]| array(Element::Char, text);
    for (text, value) in [
        ("(unsigned char)x", Value::from(b'x')),
        ("(char)&lt;", Value::from(b'<' as i8)),
        ("(char) ", Value::from(b' ' as i8)),
        ("(unsigned short)65535", Value::from(65535u16)),
        ("(short)-32768", Value::from(-32768i16)),
        ("(unsigned int)4294967295", Value::from(u32::MAX)),
        ("(int)007", Value::from(7)),
        ("(unsigned long)18446744073709551615", Value::from(u64::MAX)),
        ("(long)-9223372036854775808", Value::from(i64::MIN)),
        ("(float)0.10000000149011611938476562500000", Value::from(0.1f32)),
        ("(double)1.00000000000000005551115123125783e-01", Value::from(0.1f64)),
        ("(double)-inf", Value::from(-f64::INFINITY)),
        ("(long double)0", array(Element::LongDouble, &[0; 16])),
        ("(int[0])", ints(&[])),
        ("(int[3])1,-2,3", ints(&[1, -2, 3])),
        ("(int[3]) 1 ,\n-2,\t3 ", ints(&[1, -2, 3])),
        ("(double[2])1.5,2", doubles(&[1.5, 2.0])),
        ("(char[0])", chars(b"")),
        ("(char[5])h,e,l,l,o", chars(b"hello")),
        ("(char[3]),,,,,", chars(b",,,")),
        ("(char[6])&amp;,&#60;,&#x3e;,&quot;,&apos;,&gt;", chars(b"&<>\"'>")),
        ("(char[4])a,&#0;,&#195;,&#xff;", chars(b"a\0\xc3\xff")),
        ("(unsigned char[2])a,&#255;", array(Element::UChar, b"a\xff")),
        ("some text", chars(b"some text")),
        (" a &lt; b &#233; &#x1F600; (int)5 ", chars(" a < b é 😀 (int)5 ".as_bytes())),
        ("", chars(b"")),
    ] {
        let text = format!("{HEAD}<field label=\"A\">{text}</field></record>");
        assert_eq!(xml(text.repeat(2)), vec![Ok(record([(field("A"), value)])); 2], "{text}");
    }
    let text = b"<record type='data'><field label='A'>(char[2])\xc3,\xa9</field></record>";
    assert_eq!(xml(text), [Ok(record([(field("A"), chars(b"\xc3\xa9"))]))]);
}

#[test]
fn xml_field_of_another_interface_is_text() {
    let expected = |text: &str| Ok(record([(field("A"), Value::from(text))]));
    for text in [
        "<record type='data' mode='textual' interface='X'><field label='A'>(Foo \
         1)</field></record>",
        "<record type='data' interface='C4SNet'><field label='A' interface='X'>(Foo \
         1)</field></record>",
    ] {
        assert_eq!(xml(text.repeat(2)), [expected("(Foo 1)"), expected("(Foo 1)")]);
    }
    // The memo of one record must not apply to the other.
    let mixed = "<record type='data' interface='X'><field label='A'>(Foo)</field></record>\
        <record type='data'><field label='A'>(Foo)</field></record>\
        <record type='data'><field label='A'>text</field></record>\
        <record type='data'><field label='A'>(int)1</field></record>";
    let results = xml(mixed);
    assert_eq!(results[0], expected("(Foo)"));
    assert!(results[1].as_ref().is_err_and(|e| e.contains("a C type")), "{results:?}");
    assert_eq!(results[2], expected("text"));
    assert_eq!(results[3], Ok(record([(field("A"), Value::from(1))])));
}

#[test]
fn xml_tag_without_a_number_is_zero() {
    let expected =
        record([(tag("T"), Value::Tag(0)), (btag("B"), Value::Tag(0)), (tag("U"), Value::Tag(5))]);
    let text = "<record type='data'><tag label='T'/><btag label='B'></btag><tag \
                label='U'>5</tag></record>";
    assert_eq!(xml(text.repeat(3)), vec![Ok(expected); 3]);
}

const XML_ERRORS: &str = r#"
junk
    line 1, column 1: expected `<record`, a comment or `<?xml ...?>`, found `junk`
<records>
    line 1, column 2: expected `<record`, a comment or `<?xml ...?>`, found `records>`
<record>
    line 1, column 1: the record has no type: add type="data" or type="terminate"
<record type='sync'/>
    line 1, column 15: records of type `sync` are not supported: use `data` or `terminate`
<record type='data' mode='binary'></record>
    line 1, column 27: records of mode `binary` are not supported: use `textual`
<record type=data>
    line 1, column 14: expected the attribute's value in quotes, found `data>`
<record type='data
    line 1, column 19: expected the attribute's closing quote, found the end of the input
<record type='data'type='data'>
    line 1, column 20: the attribute occurs twice: remove one
<record type='data' type='data'>
    line 1, column 21: the attribute occurs twice: remove one
<record type='data'>
    line 1, column 21: expected `<field`, `<tag`, `<btag` or `</record>`, found the end of the input
<!-- no end
    line 1, column 12: expected `-->`, found the end of the input
"#;

#[test]
fn xml_error_at_record_level_has_position_and_expectation() {
    let message = "line 2, column 4: expected `<record`, a comment or `<?xml ...?>`, found `data>`";
    assert_eq!(xml("\n  <data>"), [Err(message.into())]);
    for (text, message) in cases(XML_ERRORS) {
        assert_eq!(xml(text), [Err(message)], "{text}");
    }
}

const XML_RECORD_ERRORS: &str = r#"
x
    column 55: expected `<field`, `<tag`, `<btag` or `</record>`, found `x</record>`
<float/>
    column 56: expected `<field`, `<tag`, `<btag` or `</record>`, found `float/></record>`
</tag>
    column 55: expected `</record>`, found `</tag></record>`
<field>(int)0</field>
    column 55: the field has no label: write `<field label="NAME">`
<field label='A'/>
    column 55: the field A has no value: write `<field ...>VALUE</field>`
<field label='A b'>0</field>
    column 69: expected a label, which is a letter or _ followed by letters, digits and _ (at most
    256 characters); found `A b`
<tag label=''>0</tag>
    column 67: expected a label, which is a letter or _ followed by letters, digits and _ (at most
    256 characters); found nothing
<tag label='T'>0</tag><tag label='T'>0</tag>
    column 89: <T> occurs twice in this record: remove one
<tag label='T'>five</tag>
    column 70: expected a whole number from -2147483648 to 2147483647, found `five`
<tag label='T'>2147483648</tag>
    column 70: expected a whole number from -2147483648 to 2147483647, found `2147483648`
<tag label='T'>0</field>
    column 71: expected `</tag>`, found `</field></record>`
<field label='A'>(itn)0</field>
    column 72: expected a C type as in `(int)` or `(double[2])`, found `(itn)0</field></reco...`
<field label='A'>(void *)0</field>
    column 72: expected a C type as in `(int)` or `(double[2])`, found `(void *)0</field></r...`
<field label='A'>(int)</field>
    column 77: expected a whole number from -2147483648 to 2147483647 (int), found the end of the
    value
<field label='A'>(int)1,2</field>
    column 78: expected a single number, found `,2`
<field label='A'>(unsigned int)-1</field>
    column 86: expected a whole number from 0 to 4294967295 (unsigned int), found `-1`
<field label='A'>(double)1e999</field>
    column 80: expected a number within the range of double, found `1e999`
<field label='A'>(int[2])1,2,3</field>
    column 80: expected 2 values, found 3
<field label='A'>(int[99999999999])1</field>
    column 90: expected 99999999999 values, found 1
<field label='A'>(int[2])</field>
    column 80: expected 2 values, found 0
<field label='A'>(int[2)1,2</field>
    column 78: expected the number of values as in `(int[3])`, found `)1,2`
<field label='A'>(int[-1])</field>
    column 77: expected the number of values as in `(int[3])`, found `-1])`
<field label='A'>(int[2])1;2</field>
    column 81: expected `,` or the end of the field, found `;2`
<field label='A'>(char[2])ab</field>
    column 82: expected `,` or the end of the field, found `b`
<field label='A'>(char[2])a,</field>
    column 83: expected a character, found the end of the value
<field label='A'>(char)ab</field>
    column 79: expected a single character, found `b`
<field label='A'>(char)&#256;</field>
    column 78: `&#256;` is not a single byte: use &#0; to &#255; for char
<field label='A'>a &nbsp; b</field>
    column 74: expected &lt; &gt; &amp; &quot; &apos; or a number as in &#10;, found `&nbsp; b`
<field label='A'>(int)<!-- -->1</field>
    column 77: expected a whole number from -2147483648 to 2147483647 (int), found the end of the
    value
<field label='A'>a<![CDATA[b]]></field>
    column 73: comments and CDATA are not supported in a value: write its text with &lt; and &amp;
"#;

#[test]
fn xml_error_inside_a_record_has_position_and_expectation() {
    let inside = |text: &str| format!("{HEAD}{text}</record>");
    for (text, message) in cases(XML_RECORD_ERRORS) {
        let message = format!("line 1, {message}");
        assert_eq!(xml(inside(text)), [Err(message.clone())], "{text}");
        // The next record is read, and the reader reports the same error among memoised records.
        let good = inside("<field label='A'>(int)0</field>");
        let all = xml(format!("{good}\n{}\n{good}", inside(text)));
        let good = Ok(record([(field("A"), Value::from(0))]));
        assert_eq!(all, [good.clone(), Err(message.replace("line 1", "line 2")), good], "{text}");
    }
}

#[test]
fn json_notations_of_one_record_are_equal() {
    for text in [
        r#"{"A":{"int":0},"T":1,"<#B>":2}"#,
        "\u{feff}\n \n{\"A\":{\"int\":0},\"T\":1,\"<#B>\":2}\n\n",
        " { \"T\" : 1 ,\t\"<#B>\" : 2 , \"A\" : { \"int\" : 0 } } \r\n",
        r#"{"<T>":1,"<#B>":2,"\u0041":{"i\u006et":-0}}"#,
    ] {
        assert_eq!(json(text), [Ok(sample())], "{text}");
        let lines = json(format!("{text}\n{text}").replace('\u{feff}', ""));
        assert_eq!(lines, [Ok(sample()), Ok(sample())], "{text}");
    }
    assert_eq!(json("{}\n{ }"), [Ok(record([])), Ok(record([]))]);
    assert_eq!(json(""), []);
}

#[test]
fn json_value_of_each_type_is_read() {
    for (text, value) in [
        (r#""""#, Value::from("")),
        (r#""some text, longer than eight""#, Value::from("some text, longer than eight")),
        (
            r#""\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00 é😀""#,
            Value::from("\"\\/\u{8}\u{c}\n\r\té😀 é😀"),
        ),
        (r#""zero \u0000""#, Value::from("zero \0")),
        (r#"{"char":-1}"#, Value::from(-1i8)),
        (r#"{"unsigned char":255}"#, Value::from(255u8)),
        (r#"{"short": -5 }"#, Value::from(-5i16)),
        (r#"{"unsigned short":5}"#, Value::from(5u16)),
        (r#"{"unsigned int":5}"#, Value::from(5u32)),
        (r#"{"long":-9223372036854775808}"#, Value::from(i64::MIN)),
        (r#"{"unsigned long":18446744073709551615}"#, Value::from(u64::MAX)),
        (r#"{"float":0.1}"#, Value::from(0.1f32)),
        (r#"{"double":-1.5e-3}"#, Value::from(-1.5e-3)),
        (r#"{"double":"-inf"}"#, Value::from(f64::NEG_INFINITY)),
        (r#"{"long double":"0x0p0"}"#, array(Element::LongDouble, &[0; 16])),
        (r#"{"int":[]}"#, ints(&[])),
        (r#"{"int":[1,-2,3]}"#, ints(&[1, -2, 3])),
        (r#"{ "int" : [ 1 , -2 , 3 ] }"#, ints(&[1, -2, 3])),
        (r#"{"double":[1.5,2]}"#, doubles(&[1.5, 2.0])),
        (r#"{"char":[104,-61]}"#, array(Element::Char, b"h\xc3")),
        (r#"{"bytes":""}"#, Value::bytes(b"")),
        (r#"{"bytes":"AP8="}"#, Value::bytes(b"\0\xff")),
        (r#"{"bytes":"\/\/8="}"#, Value::bytes(b"\xff\xff")),
        (r#"{"unsigned char":[0,255]}"#, Value::bytes(b"\0\xff")),
    ] {
        let line = format!("{{\"A\":{text}}}\n");
        assert_eq!(json(line.repeat(2)), vec![Ok(record([(field("A"), value)])); 2], "{text}");
    }
}

#[test]
fn json_distinguishes_field_and_tag_of_one_name() {
    let both = record([
        (field("A"), Value::from("x")),
        (tag("A"), Value::Tag(1)),
        (btag("A"), Value::Tag(2)),
    ]);
    for text in [r#"{"A":"x","<A>":1,"<#A>":2}"#, r#"{"<#A>":2,"<A>":1,"A":"x"}"#] {
        assert_eq!(json(text), [Ok(both.clone())]);
    }
    assert_eq!(write(Format::Json, [&both]), b"{\"A\":\"x\",\"<A>\":1,\"<#A>\":2}\n");
}

/// Asserts the error of a line between two good records.
#[track_caller]
fn assert_json_error(text: &str, message: &str) {
    let good = "{\"A\":1}\n";
    let results = json(format!("{good}{text}\n{good}"));
    assert_eq!(results.len(), 3, "{text}");
    let found = results[1].as_ref().unwrap_err();
    let message = format!("line 2, column {message}");
    assert!(found.starts_with(&message), "{text}: {found}");
    assert!(found == &message || message.ends_with("base64: "), "{text}: {found}");
    for i in [0, 2] {
        assert_eq!(results[i], Ok(record([(tag("A"), Value::Tag(1))])), "{text}");
    }
}

const JSON_ERRORS: &str = r#"
x
    1: expected a record as in {"A": "text", "T": 1}, found `x`
[1]
    1: expected a record as in {"A": "text", "T": 1}, found `[1]`
{
    2: expected a label in quotes, found the end of the line
{A:1}
    2: expected a label in quotes, found `A:1}`
{"A" 1}
    6: expected `:`, found `1}`
{"":1}
    2: expected a label, which is a letter or _ followed by letters, digits and _ (at most 256
    characters); found nothing
{"<A":1}
    2: expected a label, which is a letter or _ followed by letters, digits and _ (at most 256
    characters); found `<A`
{"A":}
    6: expected text in quotes, a whole number, or an object as in {"int": 5}, found `}`
{"é":null}
    2: expected a label, which is a letter or _ followed by letters, digits and _ (at most 256
    characters); found `é`
{"A":null}
    6: expected text in quotes, a whole number, or an object as in {"int": 5}, found `null}`
{"A":[1]}
    6: expected text in quotes, a whole number, or an object as in {"int": 5}, found `[1]}`
{"A":"é","B":"x}
    17: expected a closing quote, or an escape as in \n, found the end of the line
{"A":"\x"}
    7: expected one of \" \\ \/ \b \f \n \r \t \u, found `\x"}`
{"A":"\ud800"}
    7: expected four hexadecimal digits of a character (or of a surrogate pair), found `\ud800"}`
"#;

#[test]
fn json_error_in_structure_has_position_and_expectation() {
    let message = "8: expected a closing quote, or an escape as in \\n, found `\\tb\"}`";
    assert_json_error("{\"A\":\"a\tb\"}", message);
    for (text, message) in cases(JSON_ERRORS) {
        assert_json_error(text, &message);
    }
    let bad = json(b"{\"A\":\"text that is long enough \xff\"}");
    assert_eq!(bad, [Err("line 1, column 32: expected UTF-8, found another byte".into())]);
}

#[test]
fn json_error_in_value_has_position_and_expectation() {
    let tag_value = "a whole number from -2147483648 to 2147483647";
    let a_type = "a type as in {\"int\": 5}, {\"double\": [1.5, 2]} or {\"bytes\": \"base64\"}";
    let of_tag =
        format!("expected {tag_value} for a tag, or a field as in {{\"double\": 1.5}}, found");
    for (text, message) in [
        ("{\"T\":1.5}", format!("6: {of_tag} `1.5}}`")),
        ("{\"T\":1e3}", format!("6: {of_tag} `1e3}}`")),
        ("{\"T\":-}", format!("6: {of_tag} `-}}`")),
        ("{\"T\":01}", format!("6: {of_tag} `01}}`")),
        ("{\"T\":2147483648}", format!("6: {of_tag} `2147483648}}`")),
        (
            "{\"<T>\":\"x\"}",
            format!("8: expected {tag_value} as the value of a tag, found `\"x\"}}`"),
        ),
        ("{\"A\":{}}", format!("7: expected {a_type}, found `}}}}`")),
        ("{\"A\":{\"itn\":5}}", format!("7: expected {a_type}, found `\"itn\":5}}}}`")),
        ("{\"A\":{\"void *\":5}}", format!("7: expected {a_type}, found `\"void *\":5}}}}`")),
        ("{\"A\":{\"int\":true}}", format!("13: expected {tag_value} (int), found `true}}}}`")),
        ("{\"A\":{\"int\":[1,]}}", format!("16: expected {tag_value} (int), found `]}}}}`")),
        ("{\"A\":{\"int\":[1 2]}}", "16: expected `,` or `]`, found `2]}}`".into()),
        (
            "{\"A\":{\"int\":1,\"x\":2}}",
            "14: expected `}` after the value of a type, found `,\"x\":2}}`".into(),
        ),
        (
            "{\"A\":{\"double\":.5}}",
            "16: expected a number within the range of double, found `.5}}`".into(),
        ),
        (
            "{\"A\":{\"double\":\"1.5\"}}",
            "16: expected a number within the range of double, found `\"1.5\"}}`".into(),
        ),
        ("{\"A\":{\"bytes\":5}}", "15: expected bytes in base64 in quotes, found `5}}`".into()),
        ("{\"A\":{\"bytes\":\"A\"}}", "16: expected base64: ".into()),
        ("{\"A\":1,\"A\":2}", "8: <A> occurs twice in this record: remove one".into()),
        ("{\"A\":1,\"A\":\"x\"}", "8: A occurs twice in this record: remove one".into()),
        ("{\"A\":1,\"<A>\":2}", "8: <A> occurs twice in this record: remove one".into()),
        ("{\"A\":1 \"B\":2}", "8: expected `,` or `}`, found `\"B\":2}`".into()),
        ("{\"A\":1,}", "8: expected a label in quotes, found `}`".into()),
        ("{\"A\":1}}", "8: expected the end of the line after the record, found `}`".into()),
        (
            "{\"A\":1}{\"A\":1}",
            "8: expected the end of the line after the record, found `{\"A\":1}`".into(),
        ),
    ] {
        assert_json_error(text, &message);
    }
}

#[test]
fn reader_refuses_oversized_record_and_reads_the_next() {
    let long = "x".repeat(1000);
    for (format, bad, good) in [
        (Format::Json, format!("{{\"A\":\"{long}\"}}\n"), "{\"T\":1}\n".into()),
        (
            Format::Xml,
            format!("{HEAD}<field label='A'>{long}</field></record>\n"),
            format!("{HEAD}<tag label='T'>1</tag></record>\n"),
        ),
    ] {
        let text = format!("{good}{bad}{good}");
        for size in [1, 10, 10_000] {
            let results: Vec<_> =
                Reader::with_record_max(Pieces(text.as_bytes(), size), format, 200)
                    .map(|r| r.map_err(|e| e.to_string()))
                    .collect();
            let good = Ok(record([(tag("T"), Value::Tag(1))]));
            let bad = "line 2, column 1: the record has more than 200 bytes: split it";
            if size < 10_000 {
                assert_eq!(results, [good.clone(), Err(bad.into()), good], "{format}");
            } else {
                // A record that is already buffered may be longer.
                assert_eq!(results.len(), 3);
            }
        }
    }
    let many: Vec<_> = (0..=RECORD_LABELS_MAX).map(|i| format!("\"L{i}\":{i}")).collect();
    let text = format!("{{{}}}\n{{{}}}\n", many.join(","), many[1..].join(","));
    let results = json(text);
    assert!(results[0].as_ref().is_err_and(|e| e.contains("more than 256 labels")), "{results:?}");
    assert_eq!(results[1].as_ref().unwrap().shape().len(), RECORD_LABELS_MAX);
}

#[test]
fn xml_reader_skips_comment_that_contains_end_tags() {
    let text = format!(
        "{HEAD}<!--{}--><tag label='T'>1</tag></record>",
        "</record><record ".repeat(10_000)
    );
    assert_eq!(xml(text), [Ok(record([(tag("T"), Value::Tag(1))]))]);
}

#[test]
fn records_of_many_shapes_are_distinguished() {
    // More shapes than the memo stores, in both orders of labels.
    let mut text = String::new();
    let mut records = Vec::new();
    for i in 0..3000 {
        let (a, b) = (i % 50, 50 + i % 37);
        text += &match i % 2 {
            0 => format!("{{\"M{a}\":{i},\"M{b}\":\"{i}\"}}\n"),
            _ => format!("{{\"M{b}\":\"{i}\",\"M{a}\":{i}}}\n"),
        };
        let value = Value::from(&*i.to_string());
        records.push(record([
            (tag(&format!("M{a}")), Value::Tag(i)),
            (field(&format!("M{b}")), value),
        ]));
    }
    let read: Vec<_> = json(&text).into_iter().map(Result::unwrap).collect();
    assert_eq!(read, records);
    let xml: Vec<_> = xml(write(Format::Xml, &records)).into_iter().map(Result::unwrap).collect();
    assert_eq!(xml, records);
}

#[test]
fn written_records_have_the_documented_form() {
    let all = record([
        (field("A"), Value::from("h<&\n,é")),
        (field("B"), Value::from(0.1)),
        (field("C"), ints(&[1, -2])),
        (field("D"), Value::bytes(b"\0\xff")),
        (field("E"), array(Element::Char, b"\xff")),
        (field("F"), doubles(&[f64::NAN, -f64::INFINITY])),
        (tag("T"), Value::Tag(-1)),
        (btag("B"), Value::Tag(2)),
    ]);
    let text = String::from_utf8(write(Format::Json, [&all, &record([])])).unwrap();
    let line = r#"{"A":"h<&\n,é","B":{"double":0.1},"C":{"int":[1,-2]},"D":{"bytes":"AP8="},"E":{"char":[-1]},"F":{"double":["nan","-inf"]},"T":-1,"<#B>":2}"#;
    // Labels have the order of their first use, which other tests can change.
    let sorted = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.sort_unstable();
        bytes
    };
    assert_eq!(sorted(&text), sorted(&format!("{line}\n{{}}\n")), "{text}");
    let text = String::from_utf8(write(Format::Xml, [&all, &record([])])).unwrap();
    assert!(text.ends_with(&format!("{HEAD}</record>\n<record type=\"terminate\"/>\n")), "{text}");
    for part in [
        HEAD,
        r#"<field label="A">(char[7])h,&lt;,&amp;,&#10;,,,&#195;,&#169;</field>"#,
        r#"<field label="B">(double)0.1</field>"#,
        r#"<field label="C">(int[2])1,-2</field>"#,
        r#"<field label="D">(unsigned char[2])&#0;,&#255;</field>"#,
        r#"<field label="F">(double[2])nan,-inf</field>"#,
        r#"<tag label="T">-1</tag><btag label="B">2</btag></record>"#,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn writer_refuses_value_without_text_and_omits_its_record() {
    let good = record([(tag("T"), Value::Tag(1))]);
    for (pairs, message) in [
        (
            vec![(tag("T"), Value::Tag(1)), (field("N"), Value::native(5u8))],
            "cannot write N: a Rust value (u8) has no text: convert it into text or numbers in a \
             box",
        ),
        (
            vec![(field("P"), Value::Scalar(Scalar::new(Element::Pointer, [0; 8])))],
            "cannot write P: a pointer has no text: convert it in a box",
        ),
        (
            vec![(field("a b"), Value::from("x"))],
            "cannot write a b: its name has characters other than letters, digits and _: rename it",
        ),
    ] {
        for format in [Format::Xml, Format::Json] {
            let mut writer = Writer::new(Vec::new(), format);
            writer.write(&good).unwrap();
            let error = writer.write(&record(pairs.clone())).unwrap_err();
            assert_eq!(error.to_string(), message);
            writer.write(&good).unwrap();
            let text = writer.finish().unwrap();
            assert_eq!(text, write(format, [&good, &good]));
        }
    }
}

#[test]
fn failing_source_ends_the_reader() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the line is cut"))
        }
    }
    for format in [Format::Xml, Format::Json] {
        let text = write(format, [&sample()]);
        let text = text.split_inclusive(|b| *b == b'\n').next().unwrap();
        let mut reader = Reader::new(text.chain(Broken), format);
        assert_eq!(reader.next().unwrap().unwrap(), sample());
        let error = reader.next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "line 2, column 1: cannot read the input: the line is cut");
        assert!(reader.next().is_none());
    }
}

#[test]
fn reader_returns_record_before_it_reads_more() {
    struct Once<'a>(&'a [u8]);
    impl Read for Once<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            assert!(!self.0.is_empty(), "the reader must not read more than it needs");
            self.0.read(buffer)
        }
    }
    let text = format!("{HEAD}<tag label='T'>1</tag></record>");
    assert!(Reader::new(Once(text.as_bytes()), Format::Xml).next().unwrap().is_ok());
    assert!(Reader::new(Once(b"{\"T\":1}\n"), Format::Json).next().unwrap().is_ok());
    assert!(Reader::new(Once(b"<record type='terminate'>"), Format::Xml).next().is_none());
}

#[test]
fn unknown_format_name_is_an_error() {
    assert_eq!("xml".parse::<Format>().unwrap(), Format::Xml);
    assert_eq!("json".parse::<Format>().unwrap(), Format::Json);
    assert_eq!(
        "yaml".parse::<Format>().unwrap_err().to_string(),
        "unknown record format `yaml`: use `xml` or `json`"
    );
}

fn element() -> impl Strategy<Value = Element> {
    prop::sample::select(&Element::ALL[..11])
}

/// Makes elements of any bits, except NaNs with a payload and bit patterns that are not numbers in
/// x87.
fn elements(element: Element, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in bytes.chunks_exact(element.size()) {
        let nan = match element {
            Element::Float => f32::from_ne_bytes(chunk.try_into().unwrap()).is_nan(),
            Element::Double => f64::from_ne_bytes(chunk.try_into().unwrap()).is_nan(),
            _ => false,
        };
        let from = out.len();
        out.extend_from_slice(if nan { &[0; 8][..chunk.len()] } else { chunk });
        if element == Element::LongDouble {
            let bytes = &mut out[from..];
            if cfg!(target_arch = "x86_64") {
                bytes[7] |= 0x80; // first bit of a normal significand
                bytes[10..].fill(0);
                bytes[9] &= 0xbf; // no exponent of infinity
                bytes[8] |= 1; // no exponent of 0
            } else {
                bytes[15] &= 0xbf;
            }
        }
    }
    out
}

fn value() -> impl Strategy<Value = Value> {
    let bytes = prop::collection::vec(any::<u8>(), 0..100);
    prop_oneof![
        any::<String>().prop_map(|text| Value::from(&*text)),
        (element(), bytes).prop_map(|(element, bytes)| array(element, &elements(element, &bytes))),
        (element(), any::<[u8; 16]>()).prop_map(|(element, bytes)| {
            let bytes = elements(element, &bytes);
            match element {
                Element::LongDouble => array(element, &bytes),
                _ => {
                    let mut front = [0; 8];
                    front[..element.size()].copy_from_slice(&bytes[..element.size()]);
                    Value::Scalar(Scalar::new(element, front))
                }
            }
        }),
    ]
}

fn any_record() -> impl Strategy<Value = Record> {
    let name = prop::sample::select(vec!["A", "B", "C", "long_name_9", "_"]);
    let fields = prop::collection::vec((name.clone(), value()), 0..4);
    let tags = prop::collection::vec((name, any::<bool>(), any::<i32>()), 0..4);
    (fields, tags).prop_map(|(fields, tags)| {
        let fields = fields.into_iter().map(|(name, value)| (field(name), value));
        let tags = tags.into_iter().map(|(name, binding, n)| {
            (if binding { btag(name) } else { tag(name) }, Value::Tag(n))
        });
        record(fields.chain(tags))
    })
}

proptest! {
    #[test]
    fn records_written_are_read_back(records in prop::collection::vec(any_record(), 0..8)) {
        for format in [Format::Xml, Format::Json] {
            let text = write(format, &records);
            let back: Vec<_> = read(format, &text).into_iter().collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(&back, &records);
            prop_assert!(format == Format::Json || text.is_ascii());
        }
    }

    #[test]
    fn truncated_text_yields_the_complete_records(records in prop::collection::vec(any_record(), 1..4), cut: prop::sample::Index) {
        for format in [Format::Xml, Format::Json] {
            let text = write(format, &records);
            let text = &text[..cut.index(text.len())];
            let mut results = read(format, text);
            if results.last().is_some_and(|last| last.is_err()) {
                results.pop();
            }
            let whole: Vec<_> = results.into_iter().collect::<Result<_, _>>().unwrap();
            prop_assert!(records.starts_with(&whole));
            let ends = text.split(|b| *b == b'\n').count() - 1;
            prop_assert!(whole.len() >= ends.min(records.len()), "every complete line must be \
                read");
        }
    }

    #[test]
    fn text_with_corrupted_bytes_never_panics_and_ends(
        records in prop::collection::vec(any_record(), 1..4),
        corruptions in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), prop::sample::select(b"<>&;\"'{}[](),:/!-=\\ \n09e.".to_vec())]), 1..6),
    ) {
        for format in [Format::Xml, Format::Json] {
            let mut text = write(format, &records);
            for (index, byte) in &corruptions {
                let i = index.index(text.len());
                text[i] = *byte;
            }
            for error in read(format, &text).into_iter().filter_map(Result::err) {
                prop_assert!(!error.contains('\n') && error.starts_with("line "), "{}", error);
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read(Format::Xml, &bytes);
        read(Format::Json, &bytes);
    }

    #[test]
    fn random_pieces_never_panic(pieces in prop::collection::vec(prop::sample::select(vec![
        "<record", " type='data'", " mode=\"textual\"", " interface='X'", ">", "/>", "<field", "<tag", "<btag", " label='A'", " label='B'",
        "(int)", "(int[", "(char[2])", "2])", "1", ",", "a", "&lt;", "&#", ";", "</field>", "</tag>", "</btag>", "</record>", "<!--", "-->",
        "<?", "?>", "{", "}", "\"A\"", "\"B\"", "\"int\"", "\"bytes\"", ":", "[", "]", "\"", "\\", "u00", "\n", "-", ".", "é", "\0",
    ]), 0..60)) {
        let text = pieces.concat();
        read(Format::Xml, &text);
        read(Format::Json, &text);
    }
}
