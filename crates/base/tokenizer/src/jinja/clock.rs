//! `strftime_now`: the date for templates that print it, in UTC so that a prompt does not depend on
//! the server's time zone.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Upper bound on the output of one format code in bytes; `%c` is the longest.
pub(super) const LONGEST_FIELD: usize = 24;

const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A point in time as calendar fields.
struct Civil {
    days: u64,
    year: u64,
    /// 0 = January.
    month: usize,
    /// From 1.
    day: u64,
    /// From 1.
    day_of_year: u64,
    seconds: u64,
}

impl Civil {
    fn from_unix(unix: u64) -> Self {
        let days = unix / 86_400;
        let (mut year, mut left) = (1970, days);
        while left >= days_in_year(year) {
            left -= days_in_year(year);
            year += 1;
        }
        let day_of_year = left + 1;
        let mut month = 0;
        while left >= days_in_month(year, month) {
            left -= days_in_month(year, month);
            month += 1;
        }
        Self {
            days,
            year,
            month,
            day: left + 1,
            day_of_year,
            seconds: unix % 86_400,
        }
    }

    fn hour(&self) -> u64 {
        self.seconds / 3600
    }

    fn minute(&self) -> u64 {
        self.seconds / 60 % 60
    }

    /// 0 = Sunday; 1970 started on a Thursday.
    fn weekday_from_sunday(&self) -> u64 {
        (self.days + 4) % 7
    }

    /// 0 = Monday.
    fn weekday_from_monday(&self) -> u64 {
        (self.days + 3) % 7
    }

    /// ISO 8601 year and week: a week belongs to the year of its Thursday.
    fn iso_week(&self) -> (u64, u64) {
        let thursday = Self::from_unix((self.days + 3 - self.weekday_from_monday()) * 86_400);
        (thursday.year, (thursday.day_of_year - 1) / 7 + 1)
    }

    fn weekday(&self) -> &'static str {
        DAYS[(self.days % 7) as usize]
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn days_in_month(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Formats `now` with C's strftime codes.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
    let unix = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let civil = Civil::from_unix(unix);
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
            Some(code) => write_field(&civil, code, flag, &mut out),
            None => out.push('%'),
        }
        if flag == Some('^') {
            let upper = out.split_off(from).to_uppercase();
            out.push_str(&upper);
        }
    }
    out
}

fn write_field(civil: &Civil, code: char, flag: Option<char>, out: &mut String) {
    let padded = |out: &mut String, value: u64, width: usize, fill: char| {
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
                true => write_field(civil, c, None, out),
                false => out.push(c),
            }
        }
    };
    match code {
        'Y' => number(out, civil.year, 1),
        'C' => number(out, civil.year / 100, 2),
        'y' => number(out, civil.year % 100, 2),
        'G' => number(out, civil.iso_week().0, 1),
        'g' => number(out, civil.iso_week().0 % 100, 2),
        'm' => number(out, civil.month as u64 + 1, 2),
        'd' => number(out, civil.day, 2),
        'e' => padded(out, civil.day, 2, ' '),
        'j' => number(out, civil.day_of_year, 3),
        'U' => number(
            out,
            (civil.day_of_year + 6 - civil.weekday_from_sunday()) / 7,
            2,
        ),
        'W' => number(
            out,
            (civil.day_of_year + 6 - civil.weekday_from_monday()) / 7,
            2,
        ),
        'V' => number(out, civil.iso_week().1, 2),
        'u' => number(out, civil.weekday_from_monday() + 1, 1),
        'w' => number(out, civil.weekday_from_sunday(), 1),
        'H' => number(out, civil.hour(), 2),
        'k' => padded(out, civil.hour(), 2, ' '),
        'I' => number(out, (civil.hour() + 11) % 12 + 1, 2),
        'l' => padded(out, (civil.hour() + 11) % 12 + 1, 2, ' '),
        'M' => number(out, civil.minute(), 2),
        'S' => number(out, civil.seconds % 60, 2),
        's' => number(out, civil.days * 86_400 + civil.seconds, 1),
        'f' => out.push_str("000000"),
        'p' => out.push_str(if civil.hour() < 12 { "AM" } else { "PM" }),
        'P' => out.push_str(if civil.hour() < 12 { "am" } else { "pm" }),
        'A' => out.push_str(civil.weekday()),
        'a' => out.push_str(&civil.weekday()[..3]),
        'B' => out.push_str(MONTHS[civil.month]),
        'b' | 'h' => out.push_str(&MONTHS[civil.month][..3]),
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
