package plan

// Dirs returns the sorted names of the desired directories in dir. It reads only that directory.
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
