package status

import (
	"fmt"
	"strings"
)

// maxMessage bounds the text of a condition, an event or a row, in bytes.
const maxMessage = 1000

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// maxNames bounds the names in a message.
const maxNames = 5

// list joins the first maxNames names.
func list(names []string) string {
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}

// OverSSH reports whether a repository uses ssh: ssh:// or user@host:path.
func OverSSH(repo string) bool {
	if scheme, _, ok := strings.Cut(repo, "://"); ok {
		return scheme == "ssh"
	}
	return !strings.HasPrefix(repo, "/") && strings.Contains(repo, ":")
}
