// Package tuning holds the flags that the operator of a fleet may set for its agents: logging and resource limits. The agent
// has these flags in and outside of a pod. The injector accepts exactly these flags for the agents that it adds to pods.
package tuning

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/internal/daemon"
)

// Settings are the values of the flags.
type Settings struct {
	LogFormat string
	LogLevel  string

	MaxFiles      int
	MaxBlob       Size
	MaxRepository Size
	MaxLostFound  Size
	LostFoundAge  time.Duration
}

// Register adds the flags. The current values of s are the defaults.
func (s *Settings) Register(f *flag.FlagSet) {
	f.StringVar(&s.LogFormat, "log-format", s.LogFormat, "json, text, or auto: text on a terminal")
	f.StringVar(&s.LogLevel, "log-level", s.LogLevel, "debug, info, warn or error")

	f.IntVar(&s.MaxFiles, "max-files", s.MaxFiles, "how many files a gateway may have from git")
	f.Var(&s.MaxBlob, "max-blob", "the largest file (`size`)")
	f.Var(&s.MaxRepository, "max-repository", "the largest pack of git objects; the cache may hold several (`size`)")
	f.Var(&s.MaxLostFound, "max-lost-found", "the most that lost+found may take; the oldest goes first (`size`)")
	f.Var((*age)(&s.LostFoundAge), "lost-found-age", "how long lost+found keeps a file at least, in hours or days (`duration`)")
}

// Problems returns what is wrong with the flags that were set, for daemon.Explain.
func (s *Settings) Problems(f *flag.FlagSet) []error {
	numbers := map[string]int64{
		"max-files": int64(s.MaxFiles), "max-blob": int64(s.MaxBlob),
		"max-repository": int64(s.MaxRepository), "max-lost-found": int64(s.MaxLostFound), "lost-found-age": int64(s.LostFoundAge),
	}
	var errs []error
	f.Visit(func(given *flag.Flag) {
		switch number, is := numbers[given.Name]; {
		case given.Name == "log-format":
			errs = append(errs, daemon.OneOf("log-format", s.LogFormat, "auto", "json", "text"))
		case given.Name == "log-level":
			errs = append(errs, daemon.LevelProblem(s.LogLevel))
		case is && number <= 0:
			errs = append(errs, fmt.Errorf("--%s must be positive", given.Name))
		}
	})
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// Size is a flag value in bytes, with an optional suffix KiB, MiB or GiB.
type Size int64

var units = []struct {
	suffix string
	factor int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

func (b *Size) String() string {
	for _, u := range units {
		if int64(*b)%u.factor == 0 && *b != 0 {
			return fmt.Sprintf("%d%s", int64(*b)/u.factor, u.suffix)
		}
	}
	return "0"
}

// Set implements flag.Value.
func (b *Size) Set(v string) error {
	for _, u := range units {
		num, ok := strings.CutSuffix(v, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(num, 10, 64)
		if err != nil || n < 0 || n > (1<<62)/u.factor {
			return fmt.Errorf("%q is not a size such as 512MiB", v)
		}
		*b = Size(n * u.factor)
		return nil
	}
	return fmt.Errorf("%q is not a size such as 512MiB", v)
}

// age is a duration that may also be given in days, such as 30d.
type age time.Duration

func (a *age) String() string { return time.Duration(*a).String() }

// Set implements flag.Value.
func (a *age) Set(v string) error {
	if days, ok := strings.CutSuffix(v, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 32)
		if err != nil || n < 0 || n > 36500 {
			return fmt.Errorf("%.80q is not a duration such as 720h or 30d", v)
		}
		*a = age(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return fmt.Errorf("%.80q is not a duration such as 720h or 30d", v)
	}
	*a = age(d)
	return nil
}
