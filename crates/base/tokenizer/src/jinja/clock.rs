//! `strftime_now`: the date for templates that print it, in UTC so that a prompt does not depend on
//! the server's time zone.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Datelike, Timelike, Utc};

/// Upper bound on the output of one format code in bytes; `%c` is the longest.
pub(super) const LONGEST_FIELD: usize = 24;

/// Formats `now` with C's strftime codes.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
    let now = DateTime::<Utc>::from(now.max(UNIX_EPOCH));
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        // glibc's flags.
        let mut code = characters.next();
        let mut flag = None;
        while let Some(known) = code.filter(|c| matches!(c, '-' | '_' | '0' | '^' | '#')) {
            flag = Some(known);
            code = characters.next();
        }
        let from = out.len();
        match code {
            Some(code) => write_field(&now, code, flag, &mut out),
            None => out.push('%'),
        }
        if flag == Some('^') {
            let upper = out.split_off(from).to_uppercase();
            out.push_str(&upper);
        }
    }
    out
}

fn write_field(now: &DateTime<Utc>, code: char, flag: Option<char>, out: &mut String) {
    let (year, week) = (now.year() as u32, now.iso_week());
    let from_sunday = now.weekday().num_days_from_sunday();
    let from_monday = now.weekday().num_days_from_monday();
    let padded = |out: &mut String, value: u32, width: usize, fill: char| {
        _ = match (flag, fill) {
            (Some('-'), _) => write!(out, "{value}"),
            (Some('_'), _) | (None, ' ') => write!(out, "{value:width$}"),
            _ => write!(out, "{value:0width$}"),
        };
    };
    let number = |out: &mut String, value, width| padded(out, value, width, '0');
    let all = |format: &str, out: &mut String| {
        for c in format.chars() {
            match c.is_ascii_alphabetic() {
                true => write_field(now, c, None, out),
                false => out.push(c),
            }
        }
    };
    match code {
        'Y' => number(out, year, 1),
        'C' => number(out, year / 100, 2),
        'y' => number(out, year % 100, 2),
        'G' => number(out, week.year() as u32, 1),
        'g' => number(out, week.year() as u32 % 100, 2),
        'm' => number(out, now.month(), 2),
        'd' => number(out, now.day(), 2),
        'e' => padded(out, now.day(), 2, ' '),
        'j' => number(out, now.ordinal(), 3),
        'U' => number(out, (now.ordinal() + 6 - from_sunday) / 7, 2),
        'W' => number(out, (now.ordinal() + 6 - from_monday) / 7, 2),
        'V' => number(out, week.week(), 2),
        'u' => number(out, from_monday + 1, 1),
        'w' => number(out, from_sunday, 1),
        'H' => number(out, now.hour(), 2),
        'k' => padded(out, now.hour(), 2, ' '),
        'I' => number(out, now.hour12().1, 2),
        'l' => padded(out, now.hour12().1, 2, ' '),
        'M' => number(out, now.minute(), 2),
        'S' => number(out, now.second(), 2),
        's' => _ = write!(out, "{}", now.timestamp()),
        'f' => out.push_str("000000"),
        'p' => out.push_str(if now.hour12().0 { "PM" } else { "AM" }),
        'P' => out.push_str(if now.hour12().0 { "pm" } else { "am" }),
        'A' => _ = write!(out, "{}", now.format("%A")),
        'a' => _ = write!(out, "{}", now.format("%a")),
        'B' => _ = write!(out, "{}", now.format("%B")),
        'b' | 'h' => _ = write!(out, "{}", now.format("%b")),
        // The zone is empty, as for Python's naive `datetime.now()`.
        'Z' | 'z' => {}
        'F' => all("Y-m-d", out),
        'T' | 'X' => all("H:M:S", out),
        'R' => all("H:M", out),
        'D' | 'x' => all("m/d/y", out),
        'r' => all("I:M:S p", out),
        'c' => all("a b e H:M:S Y", out),
        'n' => out.push('\n'),
        't' => out.push('\t'),
        '%' => out.push('%'),
        // Unknown codes are copied, as in glibc.
        other => out.extend(['%', other]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(unix: u64, format: &str) -> String {
        strftime(format, UNIX_EPOCH + Duration::from_secs(unix))
    }

    #[test]
    fn known_dates() {
        assert_eq!(
            at(0, "%A %d %B %Y %H:%M:%S"),
            "Thursday 01 January 1970 00:00:00"
        );
        assert_eq!(
            at(1_709_210_096, "%a %d %b %Y, %I:%M %p, %j"),
            "Thu 29 Feb 2024, 12:34 PM, 060"
        );
        assert_eq!(
            at(1_735_689_599, "%F %T %-d %-m %y %%"),
            "2024-12-31 23:59:59 31 12 24 %"
        );
        assert_eq!(at(4_107_542_400, "%F %A"), "2100-03-01 Monday");
    }

    /// Expected values from the system's `date -u`.
    #[test]
    fn weeks_and_padding() {
        assert_eq!(
            at(
                1_709_210_096,
                "%U %W %V %G %u %w %e|%k|%l %^a %_d %-H %D %R %C %h"
            ),
            "08 09 09 2024 4 4 29|12|12 THU 29 12 02/29/24 12:34 20 Feb"
        );
        assert_eq!(
            at(1_704_067_200, "%e %-e %d %U %V %G"),
            " 1 1 01 00 01 2024"
        );
        assert_eq!(
            at(1_735_603_200, "%c|%V %G %g"),
            "Tue Dec 31 00:00:00 2024|01 2025 25"
        );
    }

    #[test]
    fn an_unknown_code_stays() {
        assert_eq!(at(0, "%Q 100% %"), "%Q 100% %");
    }
}
