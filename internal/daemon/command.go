// Package daemon holds what the long-running binaries share: command lines, exit codes, logging, and the health and metrics
// servers. The injector and the receiver use all of it. The agent, which also works without an API server, uses single parts.
//
//	s, err := parse(args, env, stderr) // by Flags, Parse and Explain
//	if err == nil {
//		err = work(ctx, s, daemon.Log(stderr, s.LogFormat, s.LogLevel)) // it ends in Run
//	}
//	return daemon.Exit(err, "receiver", stderr)
package daemon

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Exit codes, the same as those of the stoker command.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// ErrUsage marks an invalid command line that was already reported to the user.
var ErrUsage = errors.New("usage")

// Flags returns a flag set that writes its usage and parse errors to out. The usage prints about above the flags and end below
// them.
func Flags(name string, out io.Writer, about, end string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprintf(out, "%s\n\nFlags:\n", about)
		f.PrintDefaults()
		fmt.Fprintf(out, "\n%s\n", end)
	}
	return f
}

// Parse parses args. The error wraps ErrUsage, or is flag.ErrHelp if args ask for help. Parse does not check whether the values
// make sense; see Explain.
func Parse(f *flag.FlagSet, args []string) error {
	usage := f.Usage
	f.Usage = func() {} // of a wrong flag, two lines say more than all flags
	err := f.Parse(args)
	f.Usage = usage
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage()
		return err
	case err == nil:
		return nil
	}
	fmt.Fprintf(f.Output(), "See %s --help.\n", f.Name())
	return fmt.Errorf("%w: %w", ErrUsage, err)
}

// Explain reports everything that is wrong with a parsed command line at once: positional arguments and the given problems, of
// which some may be nil. It prints them and returns an error that wraps ErrUsage, or nil if there are none.
func Explain(f *flag.FlagSet, problems ...error) error {
	if f.NArg() > 0 {
		problems = slices.Insert(problems, 0, fmt.Errorf("unexpected argument %q", f.Arg(0)))
	}
	err := errors.Join(problems...)
	if err == nil {
		return nil
	}
	fmt.Fprintf(f.Output(), "%s\nSee %s --help.\n", err, f.Name())
	return fmt.Errorf("%w: %w", ErrUsage, err)
}

// OneOf returns an error if value is not one of the choices of flag name. The message omits the empty choice.
func OneOf(name, value string, choices ...string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return fmt.Errorf("--%s: %q is not one of %s", name, value, strings.Trim(strings.Join(choices, ", "), ", "))
}

// Exit returns the exit code for err. It prints err to talk unless Parse or Explain already did.
func Exit(err error, name string, talk io.Writer) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return ExitDone
	case errors.Is(err, ErrUsage):
		return ExitUsage
	}
	fmt.Fprintf(talk, "%s: %v\n", name, err)
	return ExitFailed
}

// Texts is the value of a repeatable string flag.
type Texts []string

func (t *Texts) String() string { return "" }

// Set implements flag.Value.
func (t *Texts) Set(v string) error {
	if v == "" {
		return errors.New("it is empty")
	}
	*t = append(*t, v)
	return nil
}
