//! Times of the wall clock as text.

const DAY_S: i64 = 86_400;

/// A time in seconds since 1970 as `2026-11-26 09:05:00Z`, in UTC: the local time would need the
/// database of time zones. Fractions of a second are cut off.
pub fn utc(unix_s: f64) -> String {
    let unix_s = unix_s.floor() as i64;
    let (year, month, day) = date(unix_s.div_euclid(DAY_S));
    let second = unix_s.rem_euclid(DAY_S);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970-01-01 (H. Hinnant, chrono-compatible low-level date
/// algorithms, `civil_from_days`).
fn date(days: i64) -> (i64, i64, i64) {
    // Years begin with March here, so that the leap day is the last day of a year, and 400 of them
    // are an era of 146,097 days.
    let since_0 = days.saturating_add(719_468);
    let (era, day) = (since_0.div_euclid(146_097), since_0.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let is_next = month >= 10;
    (year + era * 400 + i64::from(is_next), if is_next { month - 9 } else { month + 3 }, day)
}

/// The opposite of [`utc`]: seconds since 1970 of a time such as `2026-11-26T09:05:00Z`. A space
/// instead of the T is accepted, and the seconds may be missing.
pub fn parse_utc(text: &str) -> Option<i64> {
    let (day, time) = text.strip_suffix('Z')?.split_once(['T', ' '])?;
    let numbers = |text: &str, separator: char| -> Option<Vec<i64>> {
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit()) && part.len() <= 4;
        text.split(separator).map(|part| part.parse().ok().filter(|_| is_number(part))).collect()
    };
    let [year, month, day] = numbers(day, '-')?[..] else { return None };
    let (hour, minute, second) = match numbers(time, ':')?[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    // The day is searched for, so that there is one calendar only.
    let guess = (year - 1970) * 365 + (year - 1969) / 4 + (month - 1) * 30;
    let days = (guess - 30..guess + 60).find(|days| date(*days) == (year, month, day))?;
    let is_time = hour < 24 && minute < 60 && second < 60;
    is_time.then_some(days * DAY_S + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with `date -u -d @SECONDS`.
    #[test]
    fn times_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0.0, "1970-01-01 00:00:00Z"),
            (-1.0, "1969-12-31 23:59:59Z"),
            (951_782_400.5, "2000-02-29 00:00:00Z"),
            (1_709_251_199.0, "2024-02-29 23:59:59Z"),
            (1_709_251_200.0, "2024-03-01 00:00:00Z"),
            (1_795_684_500.0, "2026-11-26 09:15:00Z"),
            (4_107_542_400.0, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(utc(unix_s), text);
            assert_eq!(parse_utc(text), Some(unix_s.floor() as i64));
        }
        assert_eq!(parse_utc("1970-01-01T00:01Z"), Some(60));
    }

    #[test]
    fn every_day_reads_back_and_no_other_text_is_a_time() {
        for day in 0..140 * 365 {
            assert_eq!(parse_utc(&utc((day * DAY_S) as f64)), Some(day * DAY_S));
        }
        for bad in [
            "",
            "Z",
            "2026-11-26",
            "2026-11-26T10:00:00",
            "2026-02-29T10:00Z",
            "2026-13-01T10:00Z",
            "2026-11-26T24:00Z",
            "2026-11-26T10:60Z",
            "2026-11-26T+1:00Z",
            "99999999-11-26T10:00Z",
            "2026-11-26T10:00:00:00Z",
        ] {
            assert_eq!(parse_utc(bad), None, "{bad}");
        }
    }
}
