package disk

import (
	"stoker.io/stoker/agent/disk/safe"
)

// stagingFolders are the open staging folders of areas. An area is the top directory of a mount, because a rename cannot cross
// mounts.
type stagingFolders struct {
	own    *safe.AgentFolder
	byArea map[string]*safe.Folder
}

func newStagingFolders(own *safe.AgentFolder) *stagingFolders {
	return &stagingFolders{own: own, byArea: map[string]*safe.Folder{}}
}

// close closes the folders.
func (s *stagingFolders) close() {
	for _, n := range s.byArea {
		n.Close()
	}
	clear(s.byArea)
}

// openAll opens the staging folder of each area, and makes it if create is set.
func (s *stagingFolders) openAll(cur *safe.Cursor, areas []string, create bool) error {
	for _, a := range areas {
		if _, err := s.open(cur, a, create); err != nil {
			return safe.WriteError(err, "open the staging folder below %q", a)
		}
	}
	return nil
}

// open opens the staging folder of one area, and makes it if create is set.
func (s *stagingFolders) open(cur *safe.Cursor, area string, create bool) (*safe.Folder, error) {
	n, err := openStaging(s.own, cur, area, create)
	if err == nil {
		s.byArea[area] = n
	}
	return n, err
}

func openStaging(agent *safe.AgentFolder, cur *safe.Cursor, area string, create bool) (*safe.Folder, error) {
	own, vol := agent.Folder, agent.Vol
	if area != "" {
		top, err := cur.At(area)
		if err != nil {
			return nil, err
		}
		open := top.Open
		if create {
			open = func(string) (*safe.Folder, error) { return vol.OwnFolder(top) }
		}
		if own, err = open(safe.OwnDir); err != nil {
			return nil, err
		}
		defer own.Close()
	}
	if !create {
		return own.Open(stagingDir)
	}
	staging, err := vol.OpenOrMake(own, stagingDir)
	if err != nil {
		return nil, safe.WriteError(err, "make %s", own.Join(stagingDir))
	}
	if area != "" { // in .stoker itself, syncing the journal's name covers this one
		if err := vol.SyncDir(own); err != nil {
			staging.Close()
			return nil, err
		}
	}
	return staging, nil
}
