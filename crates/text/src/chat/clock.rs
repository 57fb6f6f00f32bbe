//! `strftime_now`: the date for templates that print it, in UTC so that a prompt does not depend on
//! the server's zone.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

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
    /// 0 is January.
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

/// `now` in the form that C's strftime codes ask for.
pub(super) fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
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
        // `%-d` is glibc's form without padding.
        let mut code = characters.next();
        let padded = code != Some('-');
        if !padded {
            code = characters.next();
        }
        write_field(&civil, code.unwrap_or('%'), padded, &mut out)?;
    }
    Ok(out)
}

fn write_field(civil: &Civil, code: char, padded: bool, out: &mut String) -> Result<(), Error> {
    let number = |out: &mut String, value: u64, width: usize| {
        let width = if padded { width } else { 1 };
        _ = write!(out, "{value:0width$}");
    };
    match code {
        'Y' => number(out, civil.year, 4),
        'y' => number(out, civil.year % 100, 2),
        'm' => number(out, civil.month as u64 + 1, 2),
        'd' => number(out, civil.day, 2),
        'j' => number(out, civil.day_of_year, 3),
        'H' => number(out, civil.hour(), 2),
        'I' => number(out, (civil.hour() + 11) % 12 + 1, 2),
        'M' => number(out, civil.minute(), 2),
        'S' => number(out, civil.seconds % 60, 2),
        'p' => out.push_str(if civil.hour() < 12 { "AM" } else { "PM" }),
        'A' => out.push_str(civil.weekday()),
        'a' => out.push_str(&civil.weekday()[..3]),
        'B' => out.push_str(MONTHS[civil.month]),
        'b' => out.push_str(&MONTHS[civil.month][..3]),
        'Z' => out.push_str("UTC"),
        'F' => {
            _ = write!(
                out,
                "{:04}-{:02}-{:02}",
                civil.year,
                civil.month + 1,
                civil.day
            )
        }
        'T' => {
            _ = write!(
                out,
                "{:02}:{:02}:{:02}",
                civil.hour(),
                civil.minute(),
                civil.seconds % 60
            )
        }
        '%' => out.push('%'),
        other => {
            let reason = format!("strftime_now does not know %{other}");
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    fn at(unix: u64, format: &str) -> String {
        strftime(format, UNIX_EPOCH + Duration::from_secs(unix)).unwrap()
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

    #[test]
    fn an_unknown_code_is_an_error() {
        assert!(
            strftime("%Q", UNIX_EPOCH)
                .unwrap_err()
                .to_string()
                .contains("%Q")
        );
    }
}
