package plan

// Dirs returns the names of the directories in dir that git wants, sorted. It reads one directory and no more.
func (d *Desired) Dirs(dir string) ([]string, error) {
	n, found, err := d.find(dir)
	if err != nil || !found {
		return nil, err
	}
	children, err := d.listGit(n)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range children {
		if children[i].isDir {
			names = append(names, children[i].name)
		}
	}
	return names, nil
}
