package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Cause is an error without the call of Go's that failed, and the file or program that the caller names itself.
func Cause(err error) error {
	var path *fs.PathError
	var program *exec.Error
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &program):
		return Cause(program.Err)
	}
	return err
}

// NoFile is Cause, in our words for a file that is not there.
func NoFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("no such file")
	}
	return Cause(err)
}

// CheckAddress says what is wrong with the value of a flag --listen.
func CheckAddress(address, example string) error {
	_, port, err := net.SplitHostPort(address)
	if number, bad := strconv.Atoi(port); err != nil || bad != nil || number < 0 || number > 65535 {
		return Usage(fmt.Errorf("--listen %q: must be HOST:PORT or :PORT, as %s, with a port from 0 (any) to 65535", address, example))
	}
	return nil
}

// NoArguments refuses arguments.
func NoArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		command := ""
		if c.HasParent() { // the program's own name stands before every error
			command = strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ") + ": "
		}
		return Usage(fmt.Errorf("%stakes no argument, but was given %q", command, args[0]))
	}
	return nil
}

// commands makes a command that only has others show them, and refuse what is none of them.
func commands(root *cobra.Command) {
	if root.Runnable() {
		return
	}
	root.Use += " COMMAND"
	root.SuggestionsMinimumDistance = 2
	root.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		advice := fmt.Sprintf("%s --help lists the commands", c.Name())
		if like := c.SuggestionsFor(args[0]); len(like) > 0 {
			advice = fmt.Sprintf("did you mean %s?", strings.Join(like, " or "))
		}
		return Usage(fmt.Errorf("%s: there is no such command; %s", args[0], advice))
	}
	root.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// values says what the flags of a type take, by pflag's name of the type.
var values = map[string]string{
	"bool":     "true or false",
	"duration": "a time with its unit, for example 500ms, 2s or 1m",
	"float64":  "a number",
	"int":      "a whole number",
}

// flagError says in our words what is wrong with a flag.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var empty *pflag.ValueRequiredError
	var wrong *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = "-" + unknown.GetSpecifiedName()
		}
		err = fmt.Errorf("%s: there is no such flag; see %s --help", name, c.CommandPath())
	case errors.As(err, &empty):
		err = fmt.Errorf("--%s: a value must follow", empty.GetFlag().Name)
	case errors.As(err, &wrong):
		must := cmp.Or(values[wrong.GetFlag().Value.Type()], "a "+wrong.GetFlag().Value.Type())
		err = fmt.Errorf("--%s %q: must be %s", wrong.GetFlag().Name, wrong.GetValue(), must)
	}
	return Usage(err)
}
