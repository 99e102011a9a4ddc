package safe

import (
	"fmt"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// AreaOf returns the area of the directory n. It must be the directory that the cursor opened last.
func AreaOf(cur *Cursor, n *Folder) (string, error) {
	here, err := MountOf(n)
	if err != nil {
		return "", fmt.Errorf("find the mount of %s: %w", n.Path, err)
	}
	top := ""
	for k := len(cur.Chain) - 1; k >= 0; k-- {
		m, err := MountOf(cur.Chain[k])
		if err != nil {
			return "", fmt.Errorf("find the mount of %s: %w", cur.Chain[k].Path, err)
		}
		if m != here {
			break
		}
		top = cur.Chain[k].Path
	}
	if strings.HasPrefix(top, "projects/") {
		return "", failure.New(v1alpha1.ReasonUnsafePath, "%s is a mount inside a project, and the agent cannot stage files there; mount all of projects, or all of the data directory", top)
	}
	return top, nil
}
