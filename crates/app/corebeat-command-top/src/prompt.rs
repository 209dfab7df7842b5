//! Questions at the bottom of the screen.

use crate::change::{Change, Target, name, nice, signal};
use corebeat_command::printable;
use ratatui::crossterm::event::KeyCode;

/// Greatest length of an answer, in characters.
const ANSWER_MAX: usize = 100;

/// A question, and the answer so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) question: Question,
    pub(crate) answer: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// The text to search for. Each key takes effect at once.
    Filter,
    /// The signal for a process.
    Signal(Target),
    /// Whether to send the signal.
    Confirmation(Target, i32),
    Nice(Target),
}

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The question stays.
    Incomplete,
    /// Another question follows.
    Next(Question),
    Change(Change),
    /// The question ends, with a line for the user.
    Message(String),
    /// The question ends; the filter stays.
    Kept,
    /// The question ends by Esc.
    Cancelled,
}

impl Prompt {
    pub(crate) fn new(question: Question) -> Self {
        Prompt { question, answer: String::new() }
    }

    pub(crate) fn key(&mut self, key: KeyCode) -> Answer {
        match (key, &self.question) {
            (KeyCode::Esc, _) => return Answer::Cancelled,
            (KeyCode::Char('y' | 'Y'), Question::Confirmation(target, signal)) => {
                return Answer::Change(Change::Signal(target.clone(), *signal));
            }
            (_, Question::Confirmation(..)) => return Answer::Cancelled,
            (KeyCode::Enter, _) => return self.complete(),
            (KeyCode::Char(c), _) if self.answer.chars().count() < ANSWER_MAX => {
                self.answer.push(c);
            }
            (KeyCode::Backspace, _) => drop(self.answer.pop()),
            _ => {}
        }
        Answer::Incomplete
    }

    fn complete(&self) -> Answer {
        let answer = match &self.question {
            Question::Signal(target) => signal(&self.answer)
                .map(|signal| Answer::Next(Question::Confirmation(target.clone(), signal))),
            Question::Nice(target) => {
                nice(&self.answer).map(|nice| Answer::Change(Change::Nice(target.clone(), nice)))
            }
            Question::Filter | Question::Confirmation(..) => Ok(Answer::Kept),
        };
        answer.unwrap_or_else(Answer::Message)
    }

    /// The line at the bottom of the screen.
    pub(crate) fn line(&self) -> String {
        let answer = printable(&self.answer);
        match &self.question {
            Question::Filter => format!("filter: {answer}_"),
            Question::Signal(target) => {
                format!("signal for {target}, TERM if empty: {answer}_")
            }
            Question::Confirmation(target, signal) => {
                format!("send {} to {target}? y or n", name(*signal))
            }
            Question::Nice(target) => {
                format!("nice value of {target}, -20 to 19: {answer}_")
            }
        }
    }
}
