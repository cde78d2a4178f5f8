//! The axes along which an experiment varies.

/// Declares an enum with `ALL`, its values in the order of the tables, and `name`, which tables, targets and JSON use.
macro_rules! axis {
    ($(#[$meta:meta])* $vis:vis enum $axis:ident { $($(#[$about:meta])* $value:ident = $name:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
        $vis enum $axis { $($(#[$about])* $value),+ }

        impl $axis {
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            $vis fn name(self) -> &'static str {
                match self { $(Self::$value => $name),+ }
            }
        }
    };
}

pub(crate) use axis;
