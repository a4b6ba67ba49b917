// Package cli holds what the commands share: exit statuses, the version, and where the library is.
package cli

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Exit ends a command with a status of its own; with a nil Err it says nothing.
type Exit struct {
	Status int
	Err    error
}

func (e Exit) Error() string { return fmt.Sprint(e.Err) }
func (e Exit) Unwrap() error { return e.Err }

// Usage marks an error as the caller's: status 2.
func Usage(err error) error { return Exit{2, err} }

// Prepare gives a command, and those below it, our help and our words for what is wrong with arguments.
func Prepare(root *cobra.Command) *cobra.Command {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(help)
	commands(root)
	completion(root)
	return root
}

// Run executes a command and returns its exit status. Errors go to standard error.
func Run(root *cobra.Command) (status int) {
	began := false // else an error is about the arguments
	Prepare(root).PersistentPreRun = func(*cobra.Command, []string) { began = true }
	err := root.Execute()
	if err == nil {
		return 0
	}
	status = 1
	if !began {
		status = 2
	}
	var exit Exit
	if errors.As(err, &exit) {
		status = exit.Status
	}
	if exit.Status == 0 || exit.Err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", root.Name(), err)
	}
	return status
}

// Version is what the build was given, or the state of the tree that it was made from.
func Version(given string) string {
	if given != "" {
		return given
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return info.Main.Version + " " + setting.Value
		}
	}
	return info.Main.Version
}
