// Parses and evaluates many short arithmetic expressions: no part of it is worth a second thread
// alone, and the expressions are read one after the other from one text.

enum Expression {
    Number(i64),
    Sum(Box<Expression>, Box<Expression>),
    Product(Box<Expression>, Box<Expression>),
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(b';')
    }

    fn sum(&mut self) -> Expression {
        let mut left = self.product();
        while self.peek() == b'+' {
            self.at += 1;
            left = Expression::Sum(Box::new(left), Box::new(self.product()));
        }
        left
    }

    fn product(&mut self) -> Expression {
        let mut left = self.atom();
        while self.peek() == b'*' {
            self.at += 1;
            left = Expression::Product(Box::new(left), Box::new(self.atom()));
        }
        left
    }

    fn atom(&mut self) -> Expression {
        if self.peek() == b'(' {
            self.at += 1;
            let inner = self.sum();
            self.at += 1;
            return inner;
        }
        let mut number = 0;
        while self.peek().is_ascii_digit() {
            number = number * 10 + i64::from(self.peek() - b'0');
            self.at += 1;
        }
        Expression::Number(number)
    }
}

fn value(expression: &Expression) -> i64 {
    match expression {
        Expression::Number(number) => *number,
        Expression::Sum(left, right) => value(left) + value(right),
        Expression::Product(left, right) => value(left) * value(right),
    }
}

fn text(count: u64) -> String {
    let mut text = String::new();
    for n in 0..count {
        text.push_str(&format!("{}*({}+{n})+(2+{})*(3+7*{})+{n};", n % 7, n % 11, n % 5, n % 13));
    }
    text
}

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let text = text(count);
    let mut parser = Parser { text: text.as_bytes(), at: 0 };
    let mut check = 0i64;
    while parser.at < text.len() {
        let expression = parser.sum();
        parser.at += 1;
        check = check.wrapping_mul(31).wrapping_add(value(&expression));
    }
    println!("{count} expressions, {check:016x}");
}
