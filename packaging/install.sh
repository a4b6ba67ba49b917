#!/bin/sh
# Puts the files of a list below a prefix, or takes them away again, with the folders that are gpreempt's alone.
#   packaging/install.sh install|uninstall PREFIX BUILT LIST...
# BUILT is the folder with the binaries. A file that somebody else put into one of the folders stays, and its folder.
set -eu
usage() {
	echo "usage: $0 install|uninstall PREFIX BUILT LIST..." >&2
	exit 2
}
[ $# -ge 4 ] || usage
action=$1 prefix=$2 built=$3
shift 3
case $action in install | uninstall) ;; *) usage ;; esac
for list; do # before anything is put or taken
	[ -r "$list" ] || {
		echo "$0: cannot read the list $list" >&2
		exit 1
	}
done

put() { # MODE SOURCE PLACE
	if [ "$1" = link ]; then
		mkdir -p "$(dirname "$3")"
		ln -sfn "$2" "$3"
	else
		install -D -m "$1" "$2" "$3"
	fi
}

take() { # PLACE, below the prefix
	rm -f "$prefix/$1"
	folder=$(dirname "$1")
	while case $folder in *gpreempt*) ;; *) false ;; esac && rmdir "$prefix/$folder" 2>/dev/null; do
		folder=$(dirname "$folder")
	done
}

from() { # SOURCE
	case $1 in
	BUILT/*) printf '%s\n' "$built/${1#BUILT/}" ;;
	*) printf '%s\n' "$1" ;;
	esac
}

if [ "$action" = install ]; then
	sed '/^#/d' "$@" | while read -r mode source place; do
		[ "$mode" = link ] || [ -r "$(from "$source")" ] || {
			echo "$0: $(from "$source") is not built yet, for $place: first say make, with Go 1.26 or 1.27 on the PATH" >&2
			exit 1
		}
	done
fi
sed '/^#/d' "$@" | while read -r mode source place; do
	case $action in
	install) put "$mode" "$(from "$source")" "$prefix/$place" ;;
	uninstall) take "$place" ;;
	esac
done
