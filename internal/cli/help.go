package cli

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// Width is how many columns help and manual pages have at most.
const Width = 80

// Manual is the annotation of a command whose value its manual page has behind Long: --help has room for a screen.
const Manual = "manual"

// help prints what a command does, how it is called, its commands, flags and examples.
func help(c *cobra.Command, _ []string) {
	out := c.OutOrStdout()
	fmt.Fprintf(out, "%s\n\nUsage: %s\n", Wrap(cmp.Or(c.Long, c.Short+"."), Width), Wrap(c.UseLine(), Width-len("Usage: ")))
	list := ""
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			list += hanging(fmt.Sprintf("  %-*s  ", c.NamePadding(), sub.Name()), sub.Short, Width) + "\n"
		}
	}
	if list != "" {
		fmt.Fprintf(out, "\nCommands (%s COMMAND --help says more):\n%s", c.CommandPath(), list)
	}
	if flags := c.LocalFlags(); flags.HasAvailableFlags() {
		fmt.Fprintf(out, "\nFlags:\n%s", flags.FlagUsagesWrapped(Width))
	}
	if c.Example != "" {
		fmt.Fprintf(out, "\nExamples:\n%s\n", c.Example)
	}
	if c.Annotations[Manual] != "" {
		fmt.Fprintf(out, "\nMore: man %s\n", c.Root().Name())
	}
}

// hanging is a text behind a head; further lines begin below the first one's text.
func hanging(head, text string, width int) string {
	return head + strings.ReplaceAll(Wrap(text, width-len(head)), "\n", "\n"+strings.Repeat(" ", len(head)))
}

// Entry is a line of a list: a term, and behind two blanks what is said of it.
var Entry = regexp.MustCompile(`^(  \S+(?: \S+)*  +)(\S.*)$`)

// Wrap fills paragraphs, and entries of lists, up to a width. Other lines that are indented stand as they are.
func Wrap(text string, width int) string {
	var lines []string
	open := false // the last line may go on
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if line == "" || line[0] == ' ' || line[0] == '\t' {
			if found := Entry.FindStringSubmatch(line); found != nil {
				line = hanging(found[1], found[2], width)
			}
			lines, open = append(lines, line), false
			continue
		}
		for word := range strings.FieldsSeq(line) {
			if last := len(lines) - 1; open && len(lines[last])+1+len(word) <= width {
				lines[last] += " " + word
			} else {
				lines, open = append(lines, word), true
			}
		}
	}
	return strings.Join(lines, "\n")
}

// completion adds cobra's command that prints completions, with our help.
func completion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Short, c.Long = "Print the completion script of a shell", ""
		c.Use, c.Args = "completion SHELL", shells
		c.RunE = func(c *cobra.Command, _ []string) error {
			return Usage(errors.New("completion: which shell? " + shellNames(c)))
		}
		for _, shell := range c.Commands() {
			shell.Short, shell.Long, shell.Args = "Print the completion script of "+shell.Name(), "", NoArguments
		}
	}
}

// shells refuses what is no shell: it would be help, in a file that a shell reads.
func shells(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Usage(fmt.Errorf("completion %s: there is no such shell here; %s", args[0], shellNames(c)))
}

func shellNames(c *cobra.Command) string {
	var names []string
	for _, shell := range c.Commands() {
		names = append(names, shell.Name())
	}
	return "there are " + strings.Join(names, ", ")
}
