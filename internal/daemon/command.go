// Package daemon is what the long-running binaries share: how they are told what to do and end, how they log, and which
// servers stand beside their work. The injector and the receiver run by it as a whole; the agent, which works without an API
// server too, takes single parts.
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

// ErrUsage marks a command line that cannot be run; it was explained already.
var ErrUsage = errors.New("usage")

// Flags begins a command line. What is wrong with it, and --help, is told to out: about stands above its flags, end below.
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

// Parse reads a command line. The error of a bad one wraps ErrUsage, that of --help is flag.ErrHelp. Whether what it says can
// be run is another question: see Explain.
func Parse(f *flag.FlagSet, args []string) error {
	err := f.Parse(args)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUsage, err)
}

// Explain tells all at once what keeps a command line from being run that was parsed: arguments that are no flags, and the
// problems that were found, of which some may be nil. The error wraps ErrUsage; it is nil where nothing is wrong.
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

// OneOf says what is wrong with the value of a flag that is a choice. A choice of "" is left out of what is said.
func OneOf(name, value string, choices ...string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return fmt.Errorf("--%s: %q is none of %s", name, value, strings.Trim(strings.Join(choices, ", "), ", "))
}

// Exit returns the exit code of a command that ended with err, and tells talk why it failed, where that has not been told.
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

// Texts is a flag that may be given several times.
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
