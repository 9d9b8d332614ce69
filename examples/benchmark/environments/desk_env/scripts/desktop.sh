# Helpers of the setup and export scripts; to be sourced by bash.
export DISPLAY=:1

# as_ga COMMAND: runs a command line as the desktop's user.
as_ga() { su - ga -c "export DISPLAY=:1 NO_AT_BRIDGE=1; $1"; }

# open_window TITLE COMMAND: starts a program as the desktop's user, and waits until it has
# a window whose title holds TITLE.
open_window() {
    local title=$1 try
    as_ga "setsid $2 >/tmp/program.log 2>&1 </dev/null &"
    for try in $(seq 1 150); do
        if wmctrl -l | grep -qF -- "$title"; then return 0; fi
        sleep 0.2
    done
    echo "no window titled '$title' after $try looks" >&2
    cat /tmp/program.log >&2
    return 1
}

# place_window TITLE X Y WIDTH HEIGHT: puts a window there, without its frame being maximised.
place_window() {
    wmctrl -r "$1" -b remove,maximized_vert,maximized_horz
    wmctrl -r "$1" -e "0,$2,$3,$4,$5"
}

# fill_screen TITLE: maximises a window and gives it the keyboard.
fill_screen() {
    wmctrl -r "$1" -b add,maximized_vert,maximized_horz
    wmctrl -a "$1"
    sleep 1
}

# report FIELD...: writes /tmp/task_result.json from alternating names and JSON values.
report() {
    local separator='' out='{'
    while [ "$#" -ge 2 ]; do
        out+="$separator\"$1\": $2"
        separator=', '
        shift 2
    done
    printf '%s}\n' "$out" >/tmp/task_result.json
    chmod 644 /tmp/task_result.json
}

# state_of FILE: whether it is there, and whether it was written after the task began.
state_of() {
    local exists=false changed=false
    if [ -f "$1" ]; then exists=true; fi
    if [ "$1" -nt /tmp/task_began ]; then changed=true; fi
    printf '{"exists": %s, "changed": %s}' "$exists" "$changed"
}

# pin_fonts: one family of fonts for the desktop's user, whatever else the image has, so that
# windows are laid out alike on every image.
pin_fonts() {
    install -d -o ga -g ga /home/ga/.config /home/ga/.config/fontconfig
    cat >/home/ga/.config/fontconfig/fonts.conf <<'FONTS'
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <match><test name="family"><string>sans-serif</string></test>
    <edit name="family" mode="prepend" binding="strong"><string>DejaVu Sans</string></edit></match>
  <match><test name="family"><string>Sans</string></test>
    <edit name="family" mode="prepend" binding="strong"><string>DejaVu Sans</string></edit></match>
  <match><test name="family"><string>monospace</string></test>
    <edit name="family" mode="prepend" binding="strong"><string>DejaVu Sans Mono</string></edit></match>
</fontconfig>
FONTS
    chown -R ga:ga /home/ga/.config/fontconfig
}
