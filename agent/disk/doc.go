// Package disk applies the changes of a plan to a gateway's data directory, and describes its content. It implements
// plan.State and plan.Manifest.
//
// # Promises
//
// A reader sees each file as it was or as it will be, never half. No byte that the gateway wrote is lost: what git does
// not have goes to lost+found before it is replaced. If the process dies at any instant, or the power fails, the next
// Open brings the directory to the new commit or back to the old one, without help. Nothing outside the data directory
// is read or written, whatever links it contains.
//
// Not promised: if a process opened a file before it was replaced, and writes to it after the replaced file was compared,
// what it writes is lost. Extended attributes and ACLs are not preserved. Outside Linux the promises are weaker; see
// safe/ops_other.go.
//
// # Files in .stoker
//
//	manifest      the owned files: see format.Manifest
//	journal       the sync that is being applied: see format.Journal
//	undo          the same journal, while the sync is rolled back
//	staging/      wanted bytes before the steps, replaced bytes after them
//	areas         directories with a .stoker/staging of their own, because they are other mounts
//	lost+found/   <UTC time>-<commit>/<path>, and the index <UTC time>-<commit>.jsonl with the reasons
//	snapshots/    <gateway>-<UTC time>/: what one sync displaced, its journal, and the manifest from before it
//	note-*        small notes of the sync
//	lock          locked by the agent that writes; names it
//
// # How a sync survives a crash
//
// Each line is durable before the next one starts, unless it says otherwise:
//
//  1. The wanted bytes are in staging, one slot per change, on the mount of their destination.
//  2. The journal is renamed into place. It has all changes, the steps, and the inode of every staged file.
//  3. Steps: names move between staging and the data directory; directories are made and removed. They are not durable
//     yet, and may reach the disk in any order.
//  4. Replaced files are compared with what the plan saw. Those that git does not have get a second name in lost+found.
//     If the sync takes a snapshot, all of them get one there, and the journal and the old manifest do, too.
//  5. All moved names are made durable.
//  6. The new manifest is renamed into place. This is the point of no return.
//  7. The journal is removed.
//  8. Staging is emptied, lost+found is pruned. Not durable.
//
// A crash before 2 leaves no journal. Only staging was touched, and Open empties it.
//
// After a crash between 2 and 7 Open repeats 3 to 8. The journal is complete, because its bytes are durable before it is
// renamed into place. Repeating a step is safe, because each step can tell whether it was done: if a slot still holds
// the staged file, the file has not moved. A staged file is identified by its inode, size and mtime or, if the
// directory was copied file by file meanwhile, by its bytes. If the staged file is neither in its slot nor at its
// destination, Open saves what is in the slot and marks the manifest incomplete, so that the next plan compares every
// file. Open does the same if the manifest is not the one that the journal names as the start of the run. Replaced files
// stay in their slots until 8, so that 4 finds them again. Making and removing directories, merging the manifest and
// writing lost+found can be repeated.
//
// After a crash after 7 only 8 remains, and Open empties staging.
//
// No replaced or removed file loses its last name before 8. So a sync that fails in 3 to 6, for example because the
// disk is full, can be rolled back: the journal is renamed to undo, which needs no space, and from then on recovery goes
// backward. The steps are undone in reverse order, each only if its slot says that it was done. Then the undo file is
// removed, and 8 follows. What the gateway wrote to a new file meanwhile, or put in its place, stays. A sync is also
// rolled back if 4 finds a file that the plan did not see, and the caller does not want it replaced: see RefuseForeign.
//
// A journal that cannot be read was damaged after it was written, and what is in staging is unknown. All of staging goes
// to lost+found, and the manifest is marked incomplete.
//
// # Links and races
//
// Directories are opened name by name through os.Root and compared after opening, so that links are never followed, not
// even inside the data directory. On Linux, names move by renameat2 between open directories: an exchange for a
// replacement, so that the name is never missing and the replaced bytes, whatever they are by then, are in staging;
// no-replace for a new file. On a file system without these flags (NFS, some FUSE), the replaced file is moved aside,
// and the new file gets its name by a hard link: the name is missing for a moment, but nothing is overwritten. Without
// hard links, what the gateway writes in that moment is overwritten.
package disk
